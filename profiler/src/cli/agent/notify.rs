//! Reports to the service manager, by the protocol of `sd_notify(3)`: one datagram of lines per message.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The service manager, if one has started the agent and wants to be notified.
#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    pub(super) fn connect() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|path| connect(path.as_bytes()).ok());
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        // The variables of a parent that is a service do not apply to this process.
        let is_own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let watchdog = number("WATCHDOG_USEC").filter(|_| is_own).map(Duration::from_micros);
        Self { socket, watchdog }
    }

    /// Sends a message. Errors are ignored: the agent works without a service manager.
    pub(super) fn notify(&self, message: &str) {
        if let Some(socket) = &self.socket {
            let _ = socket.send(message.as_bytes());
        }
    }

    pub(super) fn status(&self, text: &str) {
        self.notify(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// Period of `WATCHDOG=1`: half of the time after which the service manager ends the agent.
    pub(super) fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog.map(|time| time / 2).filter(|period| !period.is_zero() && self.socket.is_some())
    }
}

/// Connects to a path, or, after `@`, to a name in the abstract namespace.
fn connect(path: &[u8]) -> io::Result<UnixDatagram> {
    let address = match path.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_paths_and_abstract_names() {
        let folder = tempfile::tempdir().expect("there is a directory for temporary files");
        let path = folder.path().join("notify");
        let name = format!("heapbpf-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).expect("a valid name");
        let receivers = [
            (UnixDatagram::bind(&path), path.to_string_lossy().into_owned()),
            (UnixDatagram::bind_addr(&abstract_name), format!("@{name}")),
        ];
        for (receiver, address) in receivers {
            let receiver = receiver.expect("it can be bound");
            let socket = Some(connect(address.as_bytes()).expect("it is bound"));
            let manager = ServiceManager { socket, watchdog: Some(Duration::from_secs(10)) };
            manager.status("two\nlines");
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).expect("it was sent");
            assert_eq!(&buffer[..length], b"STATUS=two lines");
            assert_eq!(manager.watchdog_period(), Some(Duration::from_secs(5)));
        }
        assert!(connect(b"/nowhere/notify").is_err());
    }
}
