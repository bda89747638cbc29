//! Lines over an axis. The lines are stretched to the width of the page, and the labels are text
//! beside them, so that both can be read on a phone.

use super::{Axis, escaped, key, series_class};
use std::fmt::Write;

/// Units of the drawing across and down; the page stretches them.
const WIDTH: f64 = 1_000.0;
const HEIGHT: f64 = 300.0;
/// Points that are drawn as dots too, if a series has no more.
const DOTS: usize = 32;

/// A chart of one or more series.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) series: Vec<Series<'a>>,
    /// A value of `y` to which the series are compared, and its name.
    pub(crate) limit: Option<(f64, String)>,
}

/// A line through points; the number is that of its colour. A gap is a point that is not a number.
pub(crate) struct Series<'a> {
    pub(crate) number: usize,
    pub(crate) name: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

impl Chart<'_> {
    pub(crate) fn markup(&self) -> String {
        let title = escaped(self.title);
        let mut out = format!("<figure class=\"plot\">\n<figcaption><b>{title}</b>");
        for Series { number, name, .. } in self.series.iter().filter(|it| !it.name.is_empty()) {
            let _ = write!(out, "<span class=\"of\">{}{}</span>", key(*number), escaped(name));
        }
        let _ = write!(
            out,
            "</figcaption>\n<div class=\"area\"><span class=\"y-name\">{}</span>",
            escaped(&self.y.label)
        );
        for tick in self.y.ticks() {
            let _ = write!(
                out,
                "<span class=\"y-tick\" style=\"--at:{:.4}\">{}</span>",
                tick.at,
                escaped(&tick.label)
            );
        }
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
            escaped(&self.spoken())
        );
        self.grid(&mut out);
        if let Some((limit, name)) = &self.limit {
            let y = HEIGHT * (1.0 - self.y.position(*limit));
            let name = escaped(name);
            let _ = write!(
                out,
                "<path class=\"limit\" d=\"M0 {y:.1}H{WIDTH}\"><title>{name}</title></path>"
            );
        }
        for series in &self.series {
            let class = series_class(series.number);
            let path = self.path(&series.points);
            let name = escaped(series.name);
            let _ =
                write!(out, "<path class=\"{class}\" d=\"{path}\"><title>{name}</title></path>");
        }
        out.push_str("</svg>");
        self.series.iter().for_each(|series| self.dots(series, &mut out));
        self.x.draw_ticks(&mut out);
        let _ = write!(
            out,
            "</div>\n<span class=\"x-name\">{}</span>\n</figure>\n",
            escaped(&self.x.label)
        );
        out
    }

    fn grid(&self, out: &mut String) {
        let mut lines = String::new();
        for tick in self.y.ticks() {
            let _ = write!(lines, "M0 {:.1}H{WIDTH}", HEIGHT * (1.0 - tick.at));
        }
        for tick in self.x.ticks() {
            let _ = write!(lines, "M{:.1} 0V{HEIGHT}", WIDTH * tick.at);
        }
        let _ = write!(out, "<path class=\"grid\" d=\"{lines}\"/>");
    }

    /// The points of a series with few of them.
    fn dots(&self, series: &Series<'_>, out: &mut String) {
        if series.points.len() > DOTS {
            return;
        }
        let class = series_class(series.number);
        for (x, y) in series.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
            let across = self.x.position(*x);
            let up = self.y.position(*y);
            let _ = write!(
                out,
                "<span class=\"point {class}\" style=\"--x:{across:.4};--y:{up:.4}\"></span>"
            );
        }
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let mut pen = 'M';
        for (x, y) in points {
            if !(x.is_finite() && y.is_finite()) {
                pen = 'M';
                continue;
            }
            let across = WIDTH * self.x.position(*x);
            let down = HEIGHT * (1.0 - self.y.position(*y));
            let _ = write!(path, "{pen}{across:.1} {down:.1}");
            pen = 'L';
        }
        path
    }

    /// What the chart shows, for those who do not see it.
    fn spoken(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|series| series.name).collect();
        format!("{}: {} by {}; {}", self.title, self.y.label, self.x.label, names.join(", "))
    }
}
