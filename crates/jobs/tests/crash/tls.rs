//! TLS to a real server: a trusted certificate, one of another CA, one for another name, and a
//! server without TLS; and passwords.

use crate::server::{Certificates, Database, PASSWORD};
use std::time::Duration;
use wornpath_jobs::{Postgres, PostgresServer, PostgresSharing, Store, StoreError};
use wornpath_tls::{ClientTls, roots};

/// A database address, and the CA and the server name to expect.
struct Attempt<'a> {
    address: String,
    ca: &'a str,
    server_name: Option<&'a str>,
}

impl Attempt<'_> {
    fn open(&self) -> Result<Postgres, StoreError> {
        let name = self.server_name.map(str::to_owned);
        let tls = ClientTls::new(roots(self.ca).unwrap(), None, name).unwrap();
        let server =
            PostgresServer { address: self.address.clone(), password: None, tls: Some(tls) };
        let sharing =
            PostgresSharing { runner: "runner".to_owned(), term: Duration::from_secs(60) };
        Postgres::open(&server, sharing)
    }

    fn error(&self) -> String {
        self.open().unwrap_err().to_string()
    }
}

fn address(database: &Database, host: &str) -> String {
    format!("postgres://wornpath@{host}:{}/postgres", database.port)
}

#[test]
fn a_database_is_used_over_tls_only_if_its_certificate_is_trusted_and_has_its_name() {
    let certificates = Certificates::new("db.internal");
    let other = Certificates::new("db.internal");
    let Some(database) = Database::start_with_tls(&certificates) else { return };
    let address = address(&database, "127.0.0.1");

    let good = Attempt {
        address: address.clone(),
        ca: &certificates.ca,
        server_name: Some("db.internal"),
    };
    assert_eq!(good.open().unwrap().unfinished().unwrap().len(), 0);

    let untrusted =
        Attempt { address: address.clone(), ca: &other.ca, server_name: Some("db.internal") };
    assert_eq!(
        untrusted.error(),
        "store unreachable: the server's certificate is not signed by a CA in `ca`; \
         give the CA that signed it, or call another server"
    );

    let misnamed = Attempt { address: address.clone(), ca: &certificates.ca, server_name: None };
    let error = misnamed.error();
    assert!(error.contains("db.internal") && error.contains("not for `127.0.0.1`"), "{error}");
    assert!(error.ends_with("write one of its names in the URL, or set `server_name`"), "{error}");

    let plain = PostgresServer { address, password: None, tls: None };
    let sharing = PostgresSharing { runner: "plain".to_owned(), term: Duration::from_secs(60) };
    let error = Postgres::open(&plain, sharing).unwrap_err().to_string();
    assert!(error.contains("no encryption"), "the server requires TLS: {error}");
}

#[test]
fn a_server_without_tls_is_refused_if_tls_is_configured_and_the_cure_is_named() {
    let Some(database) = Database::start() else { return };
    let certificates = Certificates::new("127.0.0.1");
    let attempt = |address: String| Attempt { address, ca: &certificates.ca, server_name: None };
    let error = attempt(address(&database, "127.0.0.1")).error();
    assert!(error.contains("server does not support TLS; set `ssl = on`"), "{error}");
    let error = attempt(database.address()).error();
    assert!(error.ends_with("`sslmode=disable`, but `tls` is set; remove one of them"), "{error}");
}

#[test]
fn an_address_that_requires_tls_is_refused_without_a_ca() {
    let address = "postgres://wornpath@127.0.0.1:1/postgres?sslmode=require".to_owned();
    let server = PostgresServer { address, password: None, tls: None };
    let sharing = PostgresSharing { runner: "runner".to_owned(), term: Duration::from_secs(60) };
    let error = Postgres::open(&server, sharing).unwrap_err().to_string();
    assert!(error.contains("`sslmode=require`"), "{error}");
    assert!(error.ends_with("set `ca` in `tls` of `batch`"), "{error}");
}

#[test]
fn a_password_beside_the_address_is_used_and_one_in_it_is_refused() {
    let Some(database) = Database::start_with_password() else { return };
    let open = |address: String, password: Option<&str>| {
        let password = password.map(str::to_owned);
        let server = PostgresServer { address, password, tls: None };
        let sharing =
            PostgresSharing { runner: "runner".to_owned(), term: Duration::from_secs(60) };
        Postgres::open(&server, sharing)
    };
    let plain = address(&database, "127.0.0.1");
    assert_eq!(open(plain.clone(), Some(PASSWORD)).unwrap().unfinished().unwrap().len(), 0);
    let error = open(plain.clone(), Some("canary")).unwrap_err().to_string();
    assert!(error.contains("password authentication failed"), "{error}");
    assert!(!error.contains("canary"), "{error}");
    assert!(open(plain.clone(), None).is_err());
    for address in [
        plain.replace("wornpath@", "wornpath:canary@"),
        format!("{plain}?password=canary"),
        format!("{} password=canary", database.address()),
    ] {
        let error = open(address, None).unwrap_err().to_string();
        assert!(error.contains("the address contains a password"), "{error}");
        assert!(!error.contains("canary"), "{error}");
    }
}
