//! Pages are whole, self-contained, and hold text as text.

use super::*;

fn chart() -> Chart<'static> {
    let points = vec![(0.0, 0.0), (1.0, 0.5), (2.0, f64::NAN), (3.0, 1.0)];
    Chart {
        title: "<b>",
        x: Axis::seconds("time", 3.0),
        y: Axis::percent("share"),
        series: vec![Series { number: 7, name: "a&b", points }],
        limit: Some((0.5, "half".to_owned())),
    }
}

#[test]
fn a_page_is_self_contained_and_what_it_is_given_is_text() {
    let mut page = Page::new("plan", "<script>alert(1)</script>", "\"facts\"");
    page.section("A & B", "how");
    page.tiles(&[Tile { name: "n", value: "<1>".into(), more: String::new() }]);
    page.table(&["x", "y"], &[vec![TableCell::series(0, "<i>"), TableCell::text("<2>")]]);
    page.push(chart().markup());
    page.push(icicle(
        "forest",
        &[Cell {
            row: 0,
            left: 0.0,
            width: 0.5,
            name: "<name>".into(),
            size: "2 \"requests\"".into(),
            strength: 1.0,
        }],
    ));
    let text = page.finish();
    for markup in ["<script", "<1>", "<2>", "<i>", "<name>", "a&b"] {
        assert!(!text.contains(markup), "{markup}");
    }
    // No name space either: a page in HTML needs none.
    for outside in ["http://", "https://", "src=", "url(", "@import"] {
        assert!(!text.contains(outside), "{outside} leads out of the page");
    }
    for tag in ["svg", "div", "table", "figure", "span", "tr", "style"] {
        let opened = text.matches(&format!("<{tag}")).count();
        assert_eq!(opened, text.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn a_line_has_a_gap_where_nothing_is_known_and_a_mark_at_the_limit() {
    let markup = chart().markup();
    assert!(markup.contains("d=\"M0.0 300.0L333.3 150.0M1000.0 0.0\""), "{markup}");
    assert!(markup.contains("class=\"limit\" d=\"M0 150.0H1000\""), "{markup}");
    assert!(markup.contains("c2 dashed"), "the eighth series is told from the third: {markup}");
}

#[test]
fn slices_that_are_alike_are_drawn_as_one() {
    let cell = |strength| Some(HeatCell { colour: "c0", strength, title: "some".to_owned() });
    let cells = vec![cell(0.5), cell(0.5), None, cell(1.0)];
    let row = HeatRow { name: "pod 0".to_owned(), cells, more: "7".to_owned() };
    let heat = Heat { label: "load", x: Axis::seconds("time", 9.0), rows: vec![row] };
    let markup = heat.markup();
    assert_eq!(markup.matches("<rect").count(), 2, "{markup}");
    assert!(markup.contains("x=\"0\" width=\"2\"") && markup.contains("x=\"3\" width=\"1\""));
}

#[test]
fn numbers_are_short() {
    assert_eq!([7.0, 1_234.0, 56_700.0, 8.9e6].map(count), ["7", "1,234", "56.7k", "8.90M"]);
    let seconds = [0.0, 0.0042, 0.25, 3.0, 61.0, 600.0, 9_000.0];
    let times = seconds.map(|seconds| time(Duration::from_secs_f64(seconds)));
    assert_eq!(times, ["0", "4.2 ms", "250 ms", "3.00 s", "61.0 s", "10.0 min", "2.5 h"]);
}

/// The colours that reports use are those of the dashboard.
#[test]
fn every_colour_of_the_style_of_reports_is_one_of_the_dashboard() {
    let names = REPORT_STYLE.split("var(").skip(1).filter_map(|rest| rest.split(')').next());
    for name in names.filter(|name| !["--mark", "--at", "--rows", "--x", "--y"].contains(name)) {
        assert!(DASHBOARD_STYLE.contains(&format!("{name}:")), "{name}");
    }
}
