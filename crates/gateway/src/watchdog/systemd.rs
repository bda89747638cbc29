//! What a supervisor like systemd is told, over the socket that it names in `NOTIFY_SOCKET`: a datagram that says
//! `READY=1`, and `WATCHDOG=1` for as long as all is well.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The supervisor, if it wants to be told.
pub(crate) struct Supervisor(Option<(UnixDatagram, SocketAddr)>);

impl Supervisor {
    /// The one that started this process.
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        match Self::at(&name) {
            Ok(supervisor) => supervisor,
            Err(error) => {
                tracing::warn!(%error, socket = ?name, "notify socket unusable");
                Self(None)
            }
        }
    }

    fn at(name: &OsStr) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        // A supervisor that does not read must not stop whoever tells it.
        socket.set_nonblocking(true)?;
        Ok(Self(Some((socket, address(name)?))))
    }

    /// Tells it, as far as it can be told.
    pub(crate) fn notify(&self, state: &str) {
        if let Some((socket, address)) = &self.0 {
            // One that has gone cannot be helped; one that is busy is told again with the next look.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }
}

/// A path, or `@` and a name that is none.
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
    fn a_supervisor_behind_an_abstract_name_is_told_and_one_that_does_not_read_stops_nobody() {
        let name = format!("wornpath-test-{}", std::process::id());
        let own = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&own).unwrap();
        let supervisor = Supervisor::at(OsStr::new(&format!("@{name}"))).unwrap();
        supervisor.notify("READY=1");
        let mut message = [0; 16];
        let length = socket.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
        for _ in 0..10_000 {
            supervisor.notify("WATCHDOG=1");
        }
        drop(socket);
        supervisor.notify("WATCHDOG=1");
    }
}
