//! Pages name the ports that people use; a test may not take those.
//!
//! So every port of a page is moved by the same distance, to where no process listens: below the
//! ports that the system assigns to connections.

use std::net::TcpListener;

const NAMED: std::ops::RangeInclusive<u16> = 5000..=9999;
/// A command that starts several engines takes the ports that follow the one it names.
const FOLLOWING: u16 = 8;
/// Pages that can have ports of their own at the same time.
pub(crate) const DISTANCES: usize = 30;

/// The text with its ports moved by `distance`.
pub(crate) fn moved(text: &str, distance: u16) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = 0;
    for (start, port) in ports(text) {
        out.push_str(&text[rest..start]);
        out.push_str(&(port + distance).to_string());
        rest = start + 4;
    }
    out.push_str(&text[rest..]);
    out
}

/// A distance at which all ports of the text are free; different for numbers below
/// [`DISTANCES`].
pub(crate) fn distance(text: &str, number: usize) -> u16 {
    let named: Vec<u16> = ports(text).into_iter().map(|(_, port)| port).collect();
    let is_free = |distance: &u16| {
        let taken = named.iter().flat_map(|port| *port..*port + FOLLOWING);
        taken.map(|port| port + distance).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
    };
    let start = 10_000 + 400 * u16::try_from(number % DISTANCES).unwrap();
    (start..22_000).step_by(FOLLOWING.into()).find(is_free).expect("ports of this machine are free")
}

/// Where ports stand, and which.
fn ports(text: &str) -> Vec<(usize, u16)> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(offset) = text[at..].find(|sign: char| sign.is_ascii_digit()) {
        let start = at + offset;
        let digits = text[start..].bytes().take_while(u8::is_ascii_digit).count();
        at = start + digits;
        let before = &text[..start];
        let is_named = [":", "port ", "port: ", "replay="].iter().any(|end| before.ends_with(end));
        match text[start..at].parse() {
            Ok(port) if digits == 4 && is_named && NAMED.contains(&port) => {
                found.push((start, port));
            }
            _ => {}
        }
    }
    found
}

#[test]
fn ports_are_moved_and_other_numbers_are_not() {
    let text = "wornpath engine --port 8001 --kv-tokens 8192; curl http://a:8001/x?b=8001 zmq://a:5557?replay=5558 :30000";
    let moved = moved(text, 10_000);
    let expected = "wornpath engine --port 18001 --kv-tokens 8192; curl http://a:18001/x?b=8001 zmq://a:15557?replay=15558 :30000";
    assert_eq!(moved, expected);
}
