//! Sections as one SVG: a panel per section, a line per contender, a dot at its median, a bar from
//! its 25th to its 75th percentile, on a logarithmic axis of time; or curves, or bars in groups.

use crate::curves;
use crate::groups;
use crate::report::{Chart, Section, Verdict};
use crate::stats::Summary;
use std::fmt::Write;

const WIDTH_PX: f64 = 960.0;
const AXIS_LEFT_PX: f64 = 380.0;
const AXIS_RIGHT_PX: f64 = 780.0;
const LINE_PX: f64 = 18.0;
const HEAD_PX: f64 = 76.0;
const OURS: &str = "#0b6e4f";
const PEER: &str = "#8a8f98";
const MISSED: &str = "#b3261e";

/// The whole picture.
pub(crate) fn render(sections: &[Section]) -> String {
    let mut body = String::new();
    let mut top_px = 0.0;
    for section in sections {
        top_px = match section.chart {
            Chart::Bars => panel(&mut body, section, top_px),
            Chart::Curves => curves::panels(&mut body, section, top_px),
            Chart::Groups => groups::panel(&mut body, section, top_px),
        };
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH_PX}\" height=\"{top_px}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

/// Draws one section and returns where the next may start.
fn panel(out: &mut String, section: &Section, top_px: f64) -> f64 {
    let lines: usize = section.rows.iter().map(|row| row.contenders.len() + 1).sum();
    let bottom_px = top_px + HEAD_PX + lines as f64 * LINE_PX;
    text(out, 12.0, top_px + 24.0, "start", "#000", &format!("{} on {}", section.title, section.place));
    text(out, 12.0, top_px + 40.0, "start", PEER, &section.place_details);
    let axis = Axis::over(section.rows.iter().flat_map(|row| &row.contenders));
    axis.draw(out, section, top_px + HEAD_PX - 8.0, bottom_px - LINE_PX / 2.0);
    let mut y = top_px + HEAD_PX;
    for row in &section.rows {
        for (n, contender) in row.contenders.iter().enumerate() {
            y += LINE_PX;
            let colour = if n == 0 { OURS } else { PEER };
            if n == 0 {
                text(out, 12.0, y, "start", "#000", &format!("{}, {}", row.cell, row.load));
            }
            text(out, AXIS_LEFT_PX - 12.0, y, "end", colour, &contender.name);
            axis.mark(out, contender, y - 4.0, colour);
        }
        let first_y = y - (row.contenders.len() - 1) as f64 * LINE_PX;
        if let Some(ratio) = &row.ratio {
            let colour = if matches!(row.verdict, Some(Verdict::Missed | Verdict::Waited)) { MISSED } else { OURS };
            let mut label = format!("{:.2} ×", ratio.value);
            if let Some(target) = row.target {
                let _ = write!(label, " (target {target})");
            }
            if row.verdict == Some(Verdict::Waited) {
                text(out, AXIS_RIGHT_PX + 16.0, first_y + LINE_PX, "start", MISSED, "but commits waited");
            }
            text(out, AXIS_RIGHT_PX + 16.0, first_y, "start", colour, &label);
        }
        y += LINE_PX;
    }
    bottom_px + LINE_PX
}

/// A logarithmic axis over whole decades.
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    fn over<'a>(contenders: impl Iterator<Item = &'a Summary>) -> Axis {
        let (mut low_us, mut high_us) = (f64::INFINITY, f64::MIN_POSITIVE);
        for c in contenders.filter(|c| c.p25_us > 0.0) {
            low_us = low_us.min(c.p25_us);
            high_us = high_us.max(c.p75_us);
        }
        let low = if low_us.is_finite() { low_us.log10().floor() as i32 } else { 0 };
        Axis { low, high: (high_us.log10().ceil() as i32).max(low + 1) }
    }

    fn x(&self, us: f64) -> f64 {
        let share = (us.max(f64::MIN_POSITIVE).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        AXIS_LEFT_PX + share.clamp(0.0, 1.0) * (AXIS_RIGHT_PX - AXIS_LEFT_PX)
    }

    fn draw(&self, out: &mut String, section: &Section, top_px: f64, bottom_px: f64) {
        for decade in self.low..=self.high {
            let us = 10f64.powi(decade);
            let x = self.x(us);
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{top_px:.1}\" x2=\"{x:.1}\" y2=\"{bottom_px:.1}\" stroke=\"#e3e5e8\"/>"
            );
            let label = format!("{} {}", section.unit.scale_us(us), section.unit.name());
            text(out, x, top_px - 2.0, "middle", PEER, &label);
        }
    }

    fn mark(&self, out: &mut String, c: &Summary, y: f64, colour: &str) {
        let (x1, x, x2) = (self.x(c.p25_us), self.x(c.median_us), self.x(c.p75_us));
        let _ = writeln!(
            out,
            "<line x1=\"{x1:.1}\" y1=\"{y:.1}\" x2=\"{x2:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\" stroke-width=\"3\" \
             stroke-opacity=\"0.5\"/><circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"/>"
        );
    }
}

pub(crate) fn text(out: &mut String, x: f64, y: f64, anchor: &str, colour: &str, what: &str) {
    let what = what.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{what}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_shows_every_contender_escaped_and_in_place() {
        let svg = render(&[crate::table::tests::sample()]);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("1.20 × (target ≤ 1.25)") && svg.contains("floor, buffered &lt;&amp;&gt;"));
        // 100 µs is the axis' lower end; 120 µs lies log10(1.2) of a decade to its right.
        let x_px = AXIS_LEFT_PX + 1.2f64.log10() * (AXIS_RIGHT_PX - AXIS_LEFT_PX);
        assert!(svg.contains(&format!("cx=\"{x_px:.1}\"")) && svg.contains(&format!("cx=\"{AXIS_LEFT_PX:.1}\"")));
    }

    #[test]
    fn curves_show_mean_and_median_of_every_contender() {
        let section = Section { chart: Chart::Curves, ..crate::table::tests::sample() };
        let svg = render(&[section]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (4, 4));
        assert!(svg.contains("● floor, buffered &lt;&amp;&gt;"));
    }

    #[test]
    fn groups_have_a_numbered_bar_for_every_contender() {
        let section = Section { chart: Chart::Groups, ..crate::table::tests::sample() };
        let svg = render(&[section]);
        // One rectangle is the background.
        assert_eq!(svg.matches("<rect").count(), 3);
        assert!(svg.contains(">1 Untorn<") && svg.contains(">2 floor, buffered &lt;&amp;&gt;<"));
    }
}
