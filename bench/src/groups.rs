//! A section as bars in groups, one group for each row and one bar for each contender, on a logarithmic axis
//! of time.

use crate::plot::text;
use crate::report::Section;
use std::fmt::Write;

const LEFT_PX: f64 = 64.0;
const WIDTH_PX: f64 = 650.0;
const LEGEND_PX: f64 = 732.0;
const TOP_PX: f64 = 64.0;
const HEIGHT_PX: f64 = 300.0;
const OURS: &str = "#0b6e4f";
const PEER: &str = "#8fa3bf";

/// Draws the section and returns where the next may start. Bars are numbered as in the legend.
pub(crate) fn panel(out: &mut String, section: &Section, top_px: f64) -> f64 {
    text(out, 12.0, top_px + 24.0, "start", "#000", &format!("{} on {}", section.title, section.place));
    text(out, 12.0, top_px + 40.0, "start", "#8a8f98", &section.place_details);
    let all = || section.rows.iter().flat_map(|row| &row.contenders);
    let log = |us: f64| us.max(0.001).log10();
    let low = all().map(|c| log(c.p25_us)).fold(f64::INFINITY, f64::min).floor();
    let high = all().map(|c| log(c.p75_us)).fold(low + 1.0, f64::max).ceil();
    let y = |us: f64| top_px + TOP_PX + HEIGHT_PX * (high - log(us)) / (high - low);
    let bottom_px = top_px + TOP_PX + HEIGHT_PX;
    for decade in low as i32..=high as i32 {
        let us = 10f64.powi(decade);
        let (line_y, right_px) = (y(us), LEFT_PX + WIDTH_PX);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT_PX:.1}\" y1=\"{line_y:.1}\" x2=\"{right_px:.1}\" y2=\"{line_y:.1}\" stroke=\"#e3e5e8\"/>"
        );
        let label = format!("{} {}", section.unit.scale_us(us), section.unit.name());
        text(out, LEFT_PX - 4.0, line_y + 4.0, "end", "#8a8f98", &label);
    }
    let names: Vec<&str> =
        section.rows.first().map_or(&[][..], |row| &row.contenders).iter().map(|c| c.name.as_str()).collect();
    let group_px = WIDTH_PX / section.rows.len().max(1) as f64;
    for (n, row) in section.rows.iter().enumerate() {
        let left_px = LEFT_PX + n as f64 * group_px;
        let step_px = (group_px - 12.0) / names.len().max(1) as f64;
        for c in &row.contenders {
            let Some(number) = names.iter().position(|name| *name == c.name) else { continue };
            let (x, bar_y) = (left_px + 6.0 + number as f64 * step_px, y(c.median_us));
            let (width, height) = (step_px * 0.8, bottom_px - bar_y);
            let colour = if is_ours(&c.name) { OURS } else { PEER };
            let middle_px = x + width / 2.0;
            let _ = writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{bar_y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>\
                 <line x1=\"{middle_px:.1}\" y1=\"{:.1}\" x2=\"{middle_px:.1}\" y2=\"{:.1}\" stroke=\"#000\"/>",
                y(c.p25_us),
                y(c.p75_us)
            );
            let _ = writeln!(
                out,
                "<text x=\"{middle_px:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"8\">{}</text>",
                bottom_px + 10.0,
                number + 1
            );
        }
        text(out, left_px + group_px / 2.0, bottom_px + 26.0, "middle", "#000", &row.cell);
    }
    for (n, name) in names.iter().enumerate() {
        let colour = if is_ours(name) { OURS } else { "#000" };
        let label = format!("{} {name}", n + 1);
        text(out, LEGEND_PX, top_px + TOP_PX + 18.0 * n as f64, "start", colour, &label);
    }
    bottom_px.max(top_px + TOP_PX + 18.0 * names.len() as f64) + 40.0
}

fn is_ours(name: &str) -> bool {
    name.contains("Untorn")
}
