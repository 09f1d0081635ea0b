//! The keeper process.

use std::io;
use std::sync::Arc;

use super::links::Links;
use super::protocol::{REQUEST_BYTES_MAX, Reply, Request};
use super::worker::{Agent, Tracers};
use crate::ids::Pid;
use crate::linux::channel::{Channel, Message};
use crate::linux::pidfd::PidFd;
use crate::linux::{companion, signals};

/// Process name in `ps` and `top`.
const NAME: &str = "heapbpf-keeper";

/// Runs the keeper until the agent, its parent, exits or closes the channel; then completes injections, resumes threads
/// and detaches everything. Fails when standard input is not the channel.
pub fn serve() -> io::Result<()> {
    let channel = Channel::of_standard_input()?;
    companion::set_name(NAME);
    // Tracing threads receive it.
    signals::block_child_signal();
    // If the agent has exited already, the channel is closed.
    let process = Arc::new(PidFd::open(Pid(std::os::unix::process::parent_id())).ok());
    let (mut links, mut tracers) = (Links::default(), Tracers::new(Arc::clone(&process)));
    let agent = Agent { channel, process };
    while let Some(message) = agent.receive_message(REQUEST_BYTES_MAX) {
        // An incomplete request of a killed agent is ignored.
        let Ok(request) = postcard::from_bytes(&message.bytes) else { break };
        if let Some(reply) = answer(&mut links, &mut tracers, request, message)
            && !postcard::to_stdvec(&reply).is_ok_and(|bytes| agent.channel.send(&bytes, &[]).is_ok())
        {
            break;
        }
    }
    tracers.finish();
    links.detach_all();
    Ok(())
}

fn answer(links: &mut Links, tracers: &mut Tracers, request: Request, message: Message) -> Option<Reply> {
    match request {
        Request::Attach { kind, sites, pid } => {
            let attached = links.attach(kind, &sites, pid, &message.descriptors);
            Some(attached.map_or_else(|error| Reply::Refused(error.to_string()), Reply::Attached))
        }
        Request::Detach(id) => {
            links.detach(id);
            None
        }
        Request::Settle => {
            links.settle();
            Some(Reply::Settled)
        }
        Request::Trace => {
            let channel = message.descriptors.into_iter().next().map(Channel::from);
            let started = channel.ok_or_else(|| io::ErrorKind::InvalidInput.into()).and_then(|it| tracers.start(it));
            Some(started.map_or_else(|error| Reply::Refused(error.to_string()), |()| Reply::Settled))
        }
    }
}
