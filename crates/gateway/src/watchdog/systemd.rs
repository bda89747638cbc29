//! The `sd_notify` protocol of service managers such as systemd: datagrams to the socket named by
//! `NOTIFY_SOCKET`, `READY=1` once and `WATCHDOG=1` for as long as no thread is stuck.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager that started this process, if it asked for notifications.
pub(crate) struct ServiceManager(Option<(UnixDatagram, SocketAddr)>);

impl ServiceManager {
    /// Reads `NOTIFY_SOCKET`. Without it, notifications are no-ops.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        match Self::at(&name) {
            Ok(manager) => manager,
            Err(error) => {
                tracing::warn!(%error, socket = ?name, "notify socket unusable");
                Self(None)
            }
        }
    }

    fn at(name: &OsStr) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A service manager that does not read must not block the watchdog.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address(name)?))))
    }

    /// Sends a state such as `READY=1`; best effort.
    pub(crate) fn notify(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // If its buffer is full, the next check sends the state again.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}

/// A path, or `@` and the name of an abstract socket.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    #[cfg(target_os = "linux")]
    if let Some(name) = name.as_bytes().strip_prefix(b"@") {
        use std::os::linux::net::SocketAddrExt;
        return SocketAddr::from_abstract_name(name);
    }
    SocketAddr::from_pathname(OsStr::from_bytes(name.as_bytes()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::linux::net::SocketAddrExt;

    #[test]
    fn an_abstract_socket_is_notified_and_a_full_or_closed_one_does_not_block() {
        let name = format!("wornpath-test-{}", std::process::id());
        let own = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&own).unwrap();
        let manager = ServiceManager::at(OsStr::new(&format!("@{name}"))).unwrap();
        manager.notify("READY=1");
        let mut message = [0; 16];
        let length = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
        for _ in 0..10_000 {
            manager.notify("WATCHDOG=1");
        }
        drop(socket);
        manager.notify("WATCHDOG=1");
    }
}
