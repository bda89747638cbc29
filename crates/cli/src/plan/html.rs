//! The report as a self-contained HTML page, with a drawing of the prefix forest.
//!
//! The drawing is an icicle: requests from left to right in planned order, shared blocks from top
//! to bottom.

use super::report::{Drawn, PlanReport};
use std::fmt::Write;

const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 320.0;

const HEAD: &str = "<!doctype html><meta charset=\"utf-8\"><title>wornpath plan</title><style>\
body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#222}\
pre{background:#f6f6f4;padding:1em;overflow:auto}svg{width:100%;background:#f6f6f4}\
rect{stroke:#fff;stroke-width:.5}rect:hover{stroke:#000}</style>";

pub(super) fn page(report: &PlanReport) -> String {
    let mut text = Vec::new();
    let mut page = format!("{HEAD}<h1>{}</h1>", escaped(&report.file));
    let _ = write!(page, "<p><b>{}</b></p><h2>Prefix forest</h2>", escaped(&report.verdict()));
    let requests = report.whole.as_ref().map_or(report.requests, |whole| whole.requests);
    page.push_str(&forest(&report.drawn, requests));
    page.push_str("<p>Requests from left to right, shared blocks from top to bottom; groups too small to see are left out.</p>");
    if report.write(&mut text).is_ok() {
        let _ = write!(page, "<pre>{}</pre>", escaped(&String::from_utf8_lossy(&text)));
    }
    page
}

fn forest(groups: &[Drawn], requests: usize) -> String {
    let deepest = groups.iter().map(|group| group.bottom).max().unwrap_or(1).max(1) as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
    for group in groups {
        let across = WIDTH / requests.max(1) as f64;
        // Deep prefixes are rare and long: the square root keeps short ones visible.
        let down = |blocks: usize| HEIGHT * (blocks as f64 / deepest).sqrt();
        let _ = write!(
            svg,
            "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"hsl({} 55% 55%)\"><title>{} requests share {} blocks</title></rect>",
            group.from as f64 * across,
            down(group.top),
            group.requests as f64 * across,
            down(group.bottom) - down(group.top),
            (group.from * 137) % 360,
            group.requests,
            group.bottom
        );
    }
    svg + "</svg>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
