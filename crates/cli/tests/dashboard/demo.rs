//! The dashboard of `wornpath demo`, from the address that it prints.

use crate::{IMAGES, have_browser, run};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// A demo, ended when dropped.
struct Demo(Child);

impl Drop for Demo {
    fn drop(&mut self) {
        let pid = self.0.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        let _ = self.0.wait();
    }
}

#[test]
fn the_demo_can_be_watched_from_the_first_line_that_it_prints() {
    if !have_browser() {
        return;
    }
    let images = std::env::var_os("WORNPATH_SCREENSHOTS").map_or("", |_| IMAGES);
    // Pictures want two minutes of traffic.
    let requests = if images.is_empty() { "150" } else { "4000" };
    let mut command = Command::new(env!("CARGO_BIN_EXE_wornpath"));
    let command = command.args(["demo", "--requests", requests]).stdout(Stdio::piped());
    let mut demo = Demo(command.spawn().unwrap());
    let mut lines = BufReader::new(demo.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = lines.next().unwrap();
    let admin = first.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    std::thread::scope(|scope| {
        // Read on, so that the demo never waits for us; ends with it.
        scope.spawn(|| lines.for_each(drop));
        run(&["demo", admin.trim_end_matches('/'), images]);
        drop(demo);
    });
}
