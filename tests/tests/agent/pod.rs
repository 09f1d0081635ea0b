//! In a control group namespace of its own, as in a pod, groups are those of the host.

use std::process::Command;

use heapbpf_tests::cgroup::Group;
use heapbpf_tests::heapbpf::{Heapbpf, binary};

use super::{Agent, Named};

/// Starts heapbpf in this group, in a namespace whose root the group is.
fn within(group: &Group, arguments: &[&str]) -> Heapbpf {
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$1\" && shift && exec unshare --cgroup \"$@\"", "sh"]);
    command.arg(group.processes()).arg(binary()).args(arguments);
    Heapbpf::with_command(command)
}

/// Groups of heapbpf and of a target below the same one, as the pods of a host are; the path of the target's.
fn groups() -> ([Group; 3], String) {
    let name = format!("heapbpf-pods-{}", std::process::id());
    let inner = |group: &str| Group::unified(&format!("{name}/{group}"));
    let above = Group::unified(&name);
    let (own, other) = (inner("own"), inner("other"));
    // With both versions, a path of version 2 begins with the folder where it is mounted.
    let mount = if above.directory().starts_with("/sys/fs/cgroup/unified") { "/unified" } else { "" };
    // Groups are removed in this order.
    ([own, other, above], format!("{mount}/{name}/other"))
}

#[test]
fn rules_for_control_groups_hold_in_a_namespace() {
    let target = Named::service("agent-in-a-pod");
    let ([own, other, _above], path) = groups();
    other.add(target.pid());
    for (rule, expected) in [
        (path.as_str(), "skipped 1 process: a rule of the configuration skips it"),
        ("/somewhere/else", "recorded 1 process for"),
    ] {
        let text =
            format!("[duty]\nrecord = \"1s\"\nevery = \"2s\"\n[[rule]]\ncgroups = [\"{rule}\"]\nengine = \"skip\"\n");
        let agent = Agent::new(&target.name, &text);
        let mut session = within(&own, &["agent", "--config", &agent.config.display().to_string()]).spawn();
        session.wait_for(expected);
        let _ = session.terminate().expect_code(0);
    }
    drop(target);
}
