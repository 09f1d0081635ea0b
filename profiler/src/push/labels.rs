//! Labels of pushed profiles: the user's, and facts about a target. A target controls its name, and a privileged one its
//! control group, so values are cleaned and bounded. Its environment is not read: it could claim to be any pod.

use std::collections::HashMap;
use std::fs;
use std::str::FromStr;

use heapbpf_ledger::model::{Pod, TargetProfile, Workload};
use strum::{EnumString, IntoStaticStr};

/// The kubelet's log directories, as seen by the first process of the host: heapbpf may run in a container.
const POD_LOGS: &str = "/proc/1/root/var/log/pods";
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// Environment variable with Kubernetes' name of the node, which manifests set (`spec.nodeName`).
const NODE_NAME: &str = "NODE_NAME";
/// Maximum number of pods on a node, by far: Kubernetes supports 110.
const PODS_MAX: usize = 4096;

const NAME_CHARS_MAX: usize = 128;
const VALUE_CHARS_MAX: usize = 256;
/// Maximum number of `--label`. With heapbpf's own labels, fewer than the 30 that Pyroscope allows.
pub(crate) const LABELS_MAX: usize = 16;

/// A label of heapbpf's own, by the name that back ends with Prometheus' rules receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr, EnumString)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Name {
    /// Name of the systemd service, or of the process.
    #[strum(serialize = "service", serialize = "service_name")]
    Service,
    Host,
    Pid,
    Comm,
    Cgroup,
    ContainerId,
    /// Name of the Kubernetes namespace.
    Namespace,
    Pod,
    PodUid,
}

impl Name {
    /// Name of the label by OpenTelemetry's conventions for resources.
    fn otlp(self) -> &'static str {
        match self {
            Self::Service => "service.name",
            Self::Host => "host.name",
            Self::Pid => "process.pid",
            Self::Comm => "process.executable.name",
            Self::Cgroup => "process.linux.cgroup",
            Self::ContainerId => "container.id",
            Self::Namespace => "k8s.namespace.name",
            Self::Pod => "k8s.pod.name",
            Self::PodUid => "k8s.pod.uid",
        }
    }
}

/// A label `--label NAME=VALUE`. The name of one of heapbpf's own labels replaces that label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserLabel {
    name: String,
    value: String,
}

impl FromStr for UserLabel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("not a label; write it like `env=production`")?;
        let name = name.trim();
        if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || name.contains(char::is_control) {
            return Err(format!("the name of a label has 1 to {NAME_CHARS_MAX} printable characters"));
        }
        if name.starts_with("__") {
            return Err(format!(
                "the label `{name}` is reserved: names that start with `__` have a meaning to servers"
            ));
        }
        if value.is_empty() || value.chars().count() > VALUE_CHARS_MAX || value.contains(char::is_control) {
            return Err(format!(
                "the value of the label `{name}` must have 1 to {VALUE_CHARS_MAX} printable characters"
            ));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

/// Checks labels. Fails for more than [`LABELS_MAX`] labels and for names that servers cannot distinguish.
pub(crate) fn check(labels: &[UserLabel]) -> Result<(), String> {
    if labels.len() > LABELS_MAX {
        return Err(format!("`--label` was given {} times; the limit is {LABELS_MAX}", labels.len()));
    }
    for (index, label) in labels.iter().enumerate() {
        let is_same = |other: &&UserLabel| legacy_name(&other.name) == legacy_name(&label.name);
        if let Some(other) = labels[..index].iter().find(is_same) {
            return Err(format!("the labels `{}` and `{}` have the same name to servers", other.name, label.name));
        }
    }
    Ok(())
}

/// The labels of one target, or of several that have the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Labels {
    own: Vec<(Name, String)>,
    user: Vec<UserLabel>,
}

impl Labels {
    /// Labels by Prometheus' rules for names, in the order of names, without duplicates.
    pub(super) fn prometheus(&self) -> Vec<(String, String)> {
        let service = |name: Name| if name == Name::Service { "service_name" } else { name.into() };
        let own = self.own.iter().map(|(name, value)| (service(*name).to_owned(), value.clone()));
        let user = self.user.iter().map(|label| (legacy_name(&label.name), label.value.clone()));
        let mut labels: Vec<_> = own.chain(user).collect();
        labels.sort();
        labels
    }

    /// Labels as attributes of a resource.
    pub(super) fn otlp(&self) -> Vec<(String, String)> {
        // The number of the process is a number in the resource already.
        let own = self.own.iter().filter(|(name, _)| *name != Name::Pid);
        let own = own.map(|(name, value)| (name.otlp().to_owned(), value.clone()));
        let user = self.user.iter().map(|label| (label.name.clone(), label.value.clone()));
        own.chain(user).collect()
    }

    /// The labels of this process and others like it.
    pub(super) fn without_pid(mut self) -> Self {
        self.own.retain(|(name, _)| *name != Name::Pid);
        self
    }
}

/// Name that consists of letters, digits and `_`, not starting with a digit.
fn legacy_name(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("_{name}") } else { name }
}

fn clean(value: &str) -> String {
    value.chars().map(|c| if c.is_control() { '_' } else { c }).take(VALUE_CHARS_MAX).collect()
}

/// Determines the labels of targets.
pub(super) struct Labeller {
    host: String,
    user: Vec<UserLabel>,
    /// Namespace and name of pods by UID; `None` for pods that have no directory.
    pods: HashMap<String, Option<(String, String)>>,
    pod_logs: &'static str,
}

/// Name of the host. In a pod, the hostname is the pod's, so the node's name takes precedence.
fn host(node: Option<String>) -> String {
    let hostname = || fs::read_to_string(HOSTNAME).unwrap_or_default().trim().to_owned();
    node.filter(|node| !node.is_empty()).unwrap_or_else(hostname)
}

impl Labeller {
    pub(super) fn new(user: Vec<UserLabel>) -> Self {
        Self { host: clean(&host(std::env::var(NODE_NAME).ok())), user, pods: HashMap::new(), pod_logs: POD_LOGS }
    }

    pub(super) fn of(&mut self, target: &TargetProfile) -> Labels {
        let facts = &target.facts;
        let cgroup = facts.cgroup.as_deref().unwrap_or_default();
        let workload = Workload::of_cgroup(cgroup);
        let service = match (workload.unit, facts.comm.as_str()) {
            (Some(unit), _) => unit,
            (None, "") => "unknown",
            (None, comm) => comm,
        };
        let (namespace, pod) = workload.pod_uid.as_deref().and_then(|uid| self.pod(uid)).unzip();
        let own = [
            (Name::Service, service),
            (Name::Host, &self.host),
            (Name::Pid, &facts.pid.to_string()),
            (Name::Comm, &facts.comm),
            (Name::Cgroup, cgroup),
            (Name::ContainerId, workload.container_id.unwrap_or_default()),
            (Name::Namespace, &namespace.unwrap_or_default()),
            (Name::Pod, &pod.unwrap_or_default()),
            (Name::PodUid, workload.pod_uid.as_deref().unwrap_or_default()),
        ];
        let mut own: Vec<_> = own.into_iter().map(|(name, value)| (name, clean(value))).collect();
        let mut user = self.user.clone();
        user.retain(|label| match own.iter_mut().find(|(name, _)| label.name.parse() == Ok(*name)) {
            Some(own) => {
                own.1.clone_from(&label.value);
                false
            }
            None => true,
        });
        own.retain(|(_, value)| !value.is_empty());
        Labels { own, user }
    }

    /// Namespace and name of a pod, from the kubelet's directories: the API server is not needed, nor is the pod trusted.
    fn pod(&mut self, uid: &str) -> Option<(String, String)> {
        if !self.pods.contains_key(uid) {
            self.pods.clear();
            let entries = fs::read_dir(self.pod_logs).into_iter().flatten().take(PODS_MAX);
            for name in entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()) {
                if let Some(pod) = Pod::of_directory(&name) {
                    self.pods.insert(pod.uid.to_owned(), Some((pod.namespace.to_owned(), pod.name.to_owned())));
                }
            }
            self.pods.entry(uid.to_owned()).or_default();
        }
        self.pods.get(uid).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_report::testing as test_profiles;

    use super::*;

    const UID: &str = "6f2e5a1c-0b1d-4c9e-9f00-1234567890ab";
    const ID: &str = "4f1ab2c9d05e7788990011223344556677889900aabbccddeeff001122334455";

    fn labeller(user: &[&str]) -> Labeller {
        let user = user.iter().map(|text| text.parse().expect("a label")).collect();
        Labeller { host: "node-1".to_owned(), user, pods: HashMap::new(), pod_logs: "/none" }
    }

    fn target(comm: &str, cgroup: &str) -> TargetProfile {
        let mut target = test_profiles::exact().targets.remove(0);
        target.facts.comm = comm.to_owned();
        target.facts.cgroup = Some(cgroup.into());
        target
    }

    fn shown(labels: &[(String, String)]) -> String {
        labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn facts_of_a_service_are_labels() {
        let labels = labeller(&["env=prod", "host=other", "team.name=a"]).of(&target("redis\n", "/x/redis.service"));
        let expected =
            "cgroup=/x/redis.service comm=redis_ env=prod host=other pid=4711 service_name=redis team_name=a";
        assert_eq!(shown(&labels.prometheus()), expected);
        let expected = "service.name=redis host.name=other process.executable.name=redis_ \
                        process.linux.cgroup=/x/redis.service env=prod team.name=a";
        assert_eq!(shown(&labels.otlp()), expected);
        assert!(!shown(&labels.without_pid().prometheus()).contains("pid="));
    }

    #[test]
    fn pods_are_named_by_the_kubelets_directories() {
        let folder = tempfile::tempdir().expect("temporary folder");
        fs::create_dir(folder.path().join(format!("shop_cart-1_{UID}"))).expect("ours");
        let mut labeller = labeller(&["service_name=cart"]);
        labeller.pod_logs = folder.path().to_str().map(|path| &*path.to_owned().leak()).expect("UTF-8");
        let labels = labeller.of(&target("java", &format!("/kubepods/pod{UID}/{ID}")));
        let expected = format!(
            "cgroup=/kubepods/pod{UID}/{ID} comm=java container_id={ID} host=node-1 namespace=shop pid=4711 pod=cart-1 \
             pod_uid={UID} service_name=cart"
        );
        assert_eq!(shown(&labels.prometheus()), expected);
        let unknown = UID.replace('6', "7");
        let labels = labeller.of(&target("java", &format!("/kubepods/pod{unknown}/{ID}")));
        assert!(!shown(&labels.prometheus()).contains("namespace="));
    }

    #[test]
    fn the_host_of_a_pod_is_its_node() {
        assert_eq!(host(Some("node-7".to_owned())), "node-7");
        let hostname = fs::read_to_string(HOSTNAME).expect("Linux has it");
        assert_eq!((host(None).as_str(), host(Some(String::new())).as_str()), (hostname.trim(), hostname.trim()));
    }

    #[test]
    fn values_are_bounded() {
        let labels = labeller(&[]).of(&target(&"é".repeat(5000), &"/x".repeat(5000)));
        for (_, value) in labels.prometheus() {
            assert!(value.chars().count() <= VALUE_CHARS_MAX);
        }
    }

    #[test]
    fn invalid_labels_are_refused() {
        for (text, message) in [
            ("env", "write it like `env=production`"),
            ("=x", "the name of a label has 1 to 128"),
            ("__name__=x", "the label `__name__` is reserved"),
            ("env=", "the value of the label `env` must have 1 to 256"),
            ("env=a\nb", "printable"),
        ] {
            let error = text.parse::<UserLabel>().expect_err(text);
            assert!(error.contains(message), "{error}");
        }
        let labels = |texts: &[&str]| texts.iter().map(|text| text.parse().expect("valid")).collect::<Vec<UserLabel>>();
        assert_eq!(check(&labels(&["a=1", "b=1"])), Ok(()));
        let error = check(&labels(&["a.b=1", "a_b=1"])).expect_err("the same name");
        assert_eq!(error, "the labels `a.b` and `a_b` have the same name to servers");
        let many: Vec<String> = (0..17).map(|number| format!("l{number}=x")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(check(&labels(&many)).expect_err("too many"), "`--label` was given 17 times; the limit is 16");
    }
}
