//! A section as two panels beside each other, of means and of medians: a curve for each contender over
//! the section's rows, on a logarithmic axis of time.

use crate::plot::text;
use crate::report::Section;
use crate::stats::Summary;
use std::fmt::Write;

const COLOURS: [&str; 8] = ["#0b6e4f", "#5fb49c", "#b7dfd0", "#b3261e", "#e08e45", "#7b5ea7", "#8a8f98", "#c3c7cd"];
const LEFT_PX: [f64; 2] = [64.0, 424.0];
const WIDTH_PX: f64 = 320.0;
const LEGEND_PX: f64 = 772.0;
const TOP_PX: f64 = 64.0;
const HEIGHT_PX: f64 = 260.0;

/// Draws the section and returns where the next may start.
pub(crate) fn panels(out: &mut String, section: &Section, top_px: f64) -> f64 {
    text(out, 12.0, top_px + 24.0, "start", "#000", &format!("{} on {}", section.title, section.place));
    text(out, 12.0, top_px + 40.0, "start", "#8a8f98", &section.place_details);
    let all = || section.rows.iter().flat_map(|row| &row.contenders);
    let mut names: Vec<&str> = Vec::new();
    for contender in all() {
        if !names.contains(&contender.name.as_str()) {
            names.push(&contender.name);
        }
    }
    let log = |us: f64| us.max(0.001).log10();
    let low = all().map(|c| log(c.median_us.min(c.mean_us))).fold(f64::INFINITY, f64::min).floor();
    let high = all().map(|c| log(c.median_us.max(c.mean_us))).fold(low + 1.0, f64::max).ceil();
    let y = |us: f64| top_px + TOP_PX + HEIGHT_PX * (high - log(us)) / (high - low);
    for (left_px, what, of) in
        [(LEFT_PX[0], "mean", (|c| c.mean_us) as fn(&Summary) -> f64), (LEFT_PX[1], "median", |c| c.median_us)]
    {
        let step_px = WIDTH_PX / (section.rows.len().max(2) - 1) as f64;
        let x = |n: usize| left_px + n as f64 * step_px;
        text(out, left_px + WIDTH_PX / 2.0, top_px + TOP_PX - 8.0, "middle", "#000", what);
        for decade in low as i32..=high as i32 {
            let us = 10f64.powi(decade);
            let line_y = y(us);
            let _ = writeln!(
                out,
                "<line x1=\"{left_px:.1}\" y1=\"{line_y:.1}\" x2=\"{:.1}\" y2=\"{line_y:.1}\" stroke=\"#e3e5e8\"/>",
                left_px + WIDTH_PX
            );
            let label = format!("{} {}", section.unit.scale_us(us), section.unit.name());
            text(out, left_px - 4.0, line_y + 4.0, "end", "#8a8f98", &label);
        }
        let bottom_px = top_px + TOP_PX + HEIGHT_PX + 16.0;
        for (n, row) in section.rows.iter().enumerate() {
            text(out, x(n), bottom_px, "middle", "#8a8f98", row.cell.split(' ').next().unwrap_or_default());
        }
        for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
            let found = section.rows.iter().map(|row| row.contenders.iter().find(|c| c.name == *name)).enumerate();
            let points: Vec<(f64, f64)> = found.filter_map(|(n, c)| Some((x(n), y(of(c?))))).collect();
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            for (x, y) in points {
                let _ = writeln!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
    }
    for (n, (name, colour)) in names.iter().zip(COLOURS.iter().cycle()).enumerate() {
        text(out, LEGEND_PX, top_px + TOP_PX + 18.0 * (n + 1) as f64, "start", colour, &format!("● {name}"));
    }
    top_px + TOP_PX + HEIGHT_PX + 40.0
}
