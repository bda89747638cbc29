//! A PostgreSQL server for tests: its cluster in a temporary folder, on a free port of 127.0.0.1.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A CA, and a certificate that it signed, as PEM.
#[allow(dead_code, reason = "each test binary uses its part of this module")]
pub(crate) struct Certificates {
    pub(crate) ca: String,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Certificates {
    /// For a server of this name.
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap().pem();
        Self { ca: ca.pem(), certificate, key: key.serialize_pem() }
    }
}

/// The password of the servers' user.
pub(crate) const PASSWORD: &str = "p@ss/w:rd";

pub(crate) struct Database {
    programs: PathBuf,
    folder: PathBuf,
    pub(crate) port: u16,
    child: Option<Child>,
}

impl Database {
    /// None, with a message, where no server is installed; a failure with
    /// `WORNPATH_PEERS=required`.
    pub(crate) fn start() -> Option<Self> {
        let mut database = Self::new()?;
        database.run();
        Some(database)
    }

    /// One that wants the password.
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn start_with_password() -> Option<Self> {
        let mut database = Self::new()?;
        let rules = "host all all 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(database.cluster().join("pg_hba.conf"), rules).unwrap();
        database.run();
        Some(database)
    }

    /// One that accepts connections over TLS only.
    #[allow(dead_code, reason = "each test binary uses its part of this module")]
    pub(crate) fn start_with_tls(certificates: &Certificates) -> Option<Self> {
        use std::io::Write;
        let mut database = Self::new()?;
        let cluster = database.cluster();
        for (name, text) in
            [("server.crt", &certificates.certificate), ("server.key", &certificates.key)]
        {
            let path = cluster.join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
            if let Some((user, group)) = unprivileged() {
                chown(&path, Some(user), Some(group)).unwrap();
            }
        }
        std::fs::write(cluster.join("pg_hba.conf"), "hostssl all all 127.0.0.1/32 trust\n")
            .unwrap();
        let settings = cluster.join("postgresql.conf");
        let mut settings = std::fs::OpenOptions::new().append(true).open(settings).unwrap();
        settings.write_all(b"\nssl = on\n").unwrap();
        database.run();
        Some(database)
    }

    fn new() -> Option<Self> {
        let required = std::env::var("WORNPATH_PEERS").is_ok_and(|value| value == "required");
        let programs = programs();
        assert!(programs.is_some() || !required, "postgres is missing");
        let Some(programs) = programs else {
            eprintln!("SKIPPED: postgres is missing");
            return None;
        };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("wornpath-postgres-{port}"));
        std::fs::create_dir_all(&folder).unwrap();
        let database = Self { programs, folder, port, child: None };
        if let Some((user, group)) = unprivileged() {
            chown(&database.folder, Some(user), Some(group)).unwrap();
        }
        let password = database.folder.join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        if let Some((user, group)) = unprivileged() {
            chown(&password, Some(user), Some(group)).unwrap();
        }
        let made = database
            .program("initdb")
            .arg(format!("--pwfile={}", password.display()))
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=wornpath",
                "--encoding=UTF8",
                "--locale=C",
            ])
            .arg(database.cluster())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(database)
    }

    /// Starts the server, or restarts it.
    pub(crate) fn run(&mut self) {
        // A server that was killed may leave its port and its memory in use for a moment.
        for _ in 0..200 {
            let mut command = self.program("postgres");
            command.arg("-D").arg(self.cluster());
            command.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-k", ""]);
            // Only processes crash in these tests, never the machine.
            command.args(["-c", "fsync=off", "-c", "max_connections=60"]);
            let mut child = command.spawn().unwrap();
            while child.try_wait().unwrap().is_none() {
                // It accepts connections before it can serve them.
                let mut is_ready = self.program("pg_isready");
                is_ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
                if is_ready.status().unwrap().success() {
                    self.child = Some(child);
                    return;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("postgres does not start in {}", self.folder.display());
    }

    /// Kills the server, without a checkpoint.
    pub(crate) fn crash(&mut self) {
        if let Some(mut child) = self.child.take() {
            let id = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process(id, rustix::process::Signal::QUIT).unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn address(&self) -> String {
        address(self.port)
    }

    fn cluster(&self) -> PathBuf {
        self.folder.join("cluster")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.stdout(Stdio::null()).stderr(Stdio::piped()).current_dir(&self.folder);
        if name == "postgres" {
            command.stderr(Stdio::null());
        }
        // The server refuses to run as root.
        if let Some((user, group)) = unprivileged() {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.crash();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) fn address(port: u16) -> String {
    format!("host=127.0.0.1 port={port} user=wornpath dbname=postgres sslmode=disable")
}

/// The newest installed server.
fn programs() -> Option<PathBuf> {
    let mut versions: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .filter(|folder| folder.join("postgres").exists() && folder.join("initdb").exists())
        .collect();
    versions.sort_by_key(|folder| version(folder));
    versions.pop()
}

fn version(folder: &Path) -> u32 {
    let name = folder.parent().and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().parse().unwrap_or(0)
}

/// The user and group of the installed package, to run the server as if the test runs as root.
fn unprivileged() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let number = |option: &str| {
        let said = Command::new("id").args([option, "postgres"]).output().unwrap().stdout;
        String::from_utf8(said).unwrap().trim().parse().unwrap()
    };
    Some((number("-u"), number("-g")))
}
