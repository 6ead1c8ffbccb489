//! Plot of a report by hour, as SVG. The upper part has a bar for each hour with the number of runs, and the lower part
//! has lines for the percentiles of the lateness.
//!
//! The plot contains no script, no link and no style sheet, and needs no font. All texts are escaped.

use std::fmt::Write as _;

use reveille_client::Time;
use reveille_client::api::{Percentiles, Report, ReportRow};

const HOUR: i64 = 3_600_000;
const WIDTH: f64 = 960.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
/// Top and height of the bars, and of the lines.
const BARS: (f64, f64) = (50.0, 200.0);
const LINES: (f64, f64) = (310.0, 160.0);
const HEIGHT: f64 = 520.0;
/// Maximum number of labels on the axis of time.
const LABELS_MAX: usize = 8;
const FAILED: &str = "#c0392b";
const OTHERS: &str = "#2c6fbb";

/// Returns the plot of a report by hour.
pub(super) fn svg(report: &Report) -> String {
    let mut out = String::new();
    // A write to a text cannot fail.
    let _infallible = draw(&mut out, report);
    out
}

struct Hour<'a> {
    /// Number of the hour in the range of the report.
    at: i64,
    row: &'a ReportRow,
}

/// Positions of hours and values.
struct Scale {
    hours: f64,
    step: f64,
}

impl Scale {
    fn x(&self, hour: f64) -> f64 {
        LEFT + hour * self.step
    }

    fn y((top, height): (f64, f64), value: u64, max: u64) -> f64 {
        top + height - height * ratio(value, max)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a plot needs no more precision")]
fn ratio(value: u64, max: u64) -> f64 {
    value as f64 / max.max(1) as f64
}

#[expect(clippy::cast_precision_loss, reason = "a report has at most some thousand hours")]
fn draw(out: &mut String, report: &Report) -> std::fmt::Result {
    let count = ((report.to.0 - report.from.0) / HOUR).max(1);
    let hours: Vec<Hour<'_>> = report.rows.iter().filter_map(|row| hour_of(report, row)).collect();
    let scale = Scale { hours: count as f64, step: (WIDTH - LEFT - RIGHT) / count as f64 };
    let runs_max = hours.iter().map(|hour| hour.row.runs).max().unwrap_or(0);
    let late_max = hours.iter().filter_map(|hour| Some(hour.row.lateness_ms?.p99)).max().unwrap_or(0);
    writeln!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">"#
    )?;
    writeln!(out, r#"<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>"#)?;
    let title = format!("Runs from {} to {}", report.from, report.to);
    text(out, (LEFT, 20.0), "start", &title)?;
    if let Some(counted_from) = report.counted_from {
        text(out, (LEFT, 36.0), "start", &format!("the counts are complete from {counted_from}"))?;
    }
    frame(out, BARS, "runs", runs_max)?;
    for hour in &hours {
        bar(out, &scale, hour, runs_max)?;
    }
    frame(out, LINES, "lateness", late_max)?;
    line(out, &scale, &hours, late_max, "#888888", |of| of.p50)?;
    line(out, &scale, &hours, late_max, "#e67e22", |of| of.p99)?;
    legend(out)?;
    axis(out, &scale, report.from)?;
    writeln!(out, "</svg>")
}

fn hour_of<'a>(report: &Report, row: &'a ReportRow) -> Option<Hour<'a>> {
    let start: Time = serde_json::from_value(serde_json::Value::from(row.value.clone()?)).ok()?;
    let at = (start.0 - report.from.0).div_euclid(HOUR);
    (start >= report.from && start < report.to).then_some(Hour { at, row })
}

/// Draws the bar of an hour: the failed and missed runs below, the other runs above.
#[expect(clippy::cast_precision_loss, reason = "a report has at most some thousand hours")]
fn bar(out: &mut String, scale: &Scale, hour: &Hour<'_>, max: u64) -> std::fmt::Result {
    let width = (scale.step * 0.8).max(0.5);
    let x = scale.x(hour.at as f64) + (scale.step - width) / 2.0;
    let bad = hour.row.states.failed.saturating_add(hour.row.states.missed);
    let (bottom, middle) = (Scale::y(BARS, 0, max), Scale::y(BARS, bad, max));
    let top = Scale::y(BARS, hour.row.runs, max);
    let name =
        format!("{}: {} runs, {bad} failed or missed", hour.row.value.as_deref().unwrap_or_default(), hour.row.runs);
    for (from, to, color) in [(top, middle, OTHERS), (middle, bottom, FAILED)] {
        if to > from {
            writeln!(
                out,
                r#"<rect x="{x:.2}" y="{from:.2}" width="{width:.2}" height="{:.2}" fill="{color}"><title>{}</title></rect>"#,
                to - from,
                escaped(&name)
            )?;
        }
    }
    Ok(())
}

/// Draws a line through the values of adjacent hours. An hour without a value interrupts the line.
#[expect(clippy::cast_precision_loss, reason = "a report has at most some thousand hours")]
fn line(
    out: &mut String,
    scale: &Scale,
    hours: &[Hour<'_>],
    max: u64,
    color: &str,
    value: impl Fn(&Percentiles) -> u64,
) -> std::fmt::Result {
    let mut points: Vec<(i64, String)> = Vec::new();
    let known = hours.iter().filter_map(|hour| Some((hour.at, value(hour.row.lateness_ms.as_ref()?))));
    for (at, value) in known {
        let point = format!("{:.2},{:.2}", scale.x(at as f64 + 0.5), Scale::y(LINES, value, max));
        if points.last().is_some_and(|(last, _)| last + 1 != at) {
            polyline(out, &points, color)?;
            points.clear();
        }
        points.push((at, point));
    }
    polyline(out, &points, color)
}

fn polyline(out: &mut String, points: &[(i64, String)], color: &str) -> std::fmt::Result {
    match points {
        [] => Ok(()),
        [(_, only)] => {
            let (x, y) = only.split_once(',').unwrap_or(("0", "0"));
            writeln!(out, r#"<circle cx="{x}" cy="{y}" r="2" fill="{color}"/>"#)
        }
        _ => {
            let points: Vec<&str> = points.iter().map(|(_, point)| point.as_str()).collect();
            let points = points.join(" ");
            writeln!(out, r#"<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>"#)
        }
    }
}

/// Draws the axes of a part, with its name and its largest value.
fn frame(out: &mut String, (top, height): (f64, f64), name: &str, max: u64) -> std::fmt::Result {
    let (right, bottom) = (WIDTH - RIGHT, top + height);
    writeln!(
        out,
        r##"<path d="M{LEFT} {top}V{bottom}H{right}" fill="none" stroke="#444444"/><path d="M{LEFT} {top}H{right}" stroke="#dddddd"/>"##
    )?;
    let largest = if name == "runs" { max.to_string() } else { format!("{max} ms") };
    text(out, (LEFT - 6.0, top + 4.0), "end", &largest)?;
    text(out, (LEFT - 6.0, bottom), "end", "0")?;
    text(out, (LEFT - 6.0, top + height / 2.0), "end", name)
}

fn legend(out: &mut String) -> std::fmt::Result {
    let (_, y) = (LEFT, LINES.0 - 12.0);
    let entries = [("p50", "#888888"), ("p99", "#e67e22"), ("failed or missed", FAILED), ("other runs", OTHERS)];
    let mut x = LEFT;
    for (name, color) in entries {
        writeln!(out, r#"<rect x="{x}" y="{:.1}" width="10" height="10" fill="{color}"/>"#, y - 9.0)?;
        text(out, (x + 14.0, y), "start", name)?;
        x += 130.0;
    }
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "a report has at most some thousand hours")]
fn axis(out: &mut String, scale: &Scale, from: Time) -> std::fmt::Result {
    let step = (scale.hours / LABELS_MAX as f64).ceil().max(1.0);
    let y = LINES.0 + LINES.1 + 18.0;
    let mut hour = 0.0;
    while hour < scale.hours {
        let instant = Time(from.0 + hour as i64 * HOUR).to_string();
        // The first 16 characters of an instant are its date, hour and minute.
        let short: String = instant.chars().take(16).map(|c| if c == 'T' { ' ' } else { c }).collect();
        text(out, (scale.x(hour), y), "start", &short)?;
        hour += step;
    }
    Ok(())
}

fn text(out: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) -> std::fmt::Result {
    writeln!(out, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#, escaped(text))
}

/// Escapes a text for XML. XML does not allow most control characters, not even escaped.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: &str) -> Report {
        let json = format!(
            r#"{{"from":"2026-03-29T00:00:00Z","to":"2026-03-29T06:00:00Z","by":"hour",
                "counted_from":"2026-03-29T01:00:00Z","rows":[{rows}]}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    fn hour(hour: u8, runs: u64, failed: u64) -> String {
        format!(
            r#"{{"group":"value","value":"2026-03-29T0{hour}:00:00Z","runs":{runs},
                "states":{{"succeeded":{},"failed":{failed},"missed":0,"cancelled":0}},
                "lateness_ms":{{"count":1,"p50":1,"p90":2,"p99":3,"max":4}}}}"#,
            runs - failed
        )
    }

    #[test]
    fn plot_has_bars_for_hours_and_lines_between_adjacent_hours() {
        let plot = svg(&report(&[hour(0, 10, 0), hour(1, 20, 5), hour(4, 0, 0)].join(",")));
        assert_eq!(plot.matches("<title>").count(), 3, "{plot}");
        assert!(plot.contains("20 runs, 5 failed or missed"), "{plot}");
        assert_eq!((plot.matches("<polyline").count(), plot.matches("<circle").count()), (2, 2), "{plot}");
        assert!(plot.contains("the counts are complete from 2026-03-29T01:00:00"), "{plot}");
        assert!(plot.starts_with("<svg ") && plot.ends_with("</svg>\n"));
    }

    #[test]
    fn plot_without_runs_is_complete() {
        let plot = svg(&report(""));
        assert!(plot.ends_with("</svg>\n") && !plot.contains("NaN") && !plot.contains("inf"), "{plot}");
    }

    #[test]
    fn texts_cannot_leave_their_element() {
        assert_eq!(
            escaped("</text><script>\"'&\u{0}\u{1b}"),
            "&lt;/text&gt;&lt;script&gt;&quot;&#39;&amp;\u{fffd}\u{fffd}"
        );
        let row = hour(1, 1, 0).replace("2026-03-29T01:00:00Z", "</title><script>");
        assert!(!svg(&report(&row)).contains("<script>"), "an hour that is no instant has no bar");
    }
}
