//! Draws sections below each other in one SVG, as dots with bars, curves, or bars in groups.

mod curves;
mod dots;
mod groups;
mod panel;

use crate::report::section::{Chart, Section};
use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// The whole picture.
pub fn render(sections: &[Section]) -> Result<String> {
    let mut svg = String::new();
    draw(sections, &mut svg).map_err(|e| anyhow!("cannot draw: {e}"))?;
    Ok(svg)
}

fn draw(sections: &[Section], svg: &mut String) -> panel::Drawn {
    let heights = sections.iter().map(|section| match section.chart {
        Chart::Bars => dots::height_px(section),
        Chart::Curves | Chart::Lines => curves::HEIGHT_PX,
        Chart::Groups => groups::height_px(section),
    });
    let heights: Vec<u32> = heights.collect();
    let root = SVGBackend::with_string(svg, (panel::WIDTH_PX, heights.iter().sum::<u32>().max(1))).into_drawing_area();
    root.fill(&WHITE)?;
    let mut rest = root.clone();
    for (section, height) in sections.iter().zip(heights) {
        let (area, below) = rest.split_vertically(height);
        rest = below;
        panel::heading(&area, section)?;
        match section.chart {
            Chart::Bars => dots::draw(&area, section)?,
            Chart::Curves => curves::draw(&area, section)?,
            Chart::Lines => curves::draw_medians(&area, section)?,
            Chart::Groups => groups::draw(&area, section)?,
        }
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::section_text::tests::sample;

    /// The x coordinates of all circles.
    fn centres(svg: &str) -> Vec<f64> {
        let circles = svg.lines().filter(|line| line.starts_with("<circle"));
        circles.map(|line| line.split("cx=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn a_picture_shows_every_contender_escaped_and_in_place() {
        let svg = render(&[sample()]).unwrap();
        assert!(svg.contains("1.20 × (target ≤ 1.25)") && svg.contains("floor, buffered &lt;&amp;&gt;"), "{svg}");
        // 100 µs is the axis' lower end; 120 µs lies log10(1.2) of a decade to its right.
        let [ours, floor] = centres(&svg)[..] else { panic!("two dots: {svg}") };
        assert_eq!(floor, f64::from(dots::AXIS_LEFT_PX));
        let x_px = 1.2f64.log10() * f64::from(dots::AXIS_RIGHT_PX - dots::AXIS_LEFT_PX);
        assert!((ours - floor - x_px).abs() <= 1.0, "{ours} {floor} {x_px}");
        assert!(svg.contains("time, µs"), "{svg}");
    }

    #[test]
    fn curves_show_mean_and_median_of_every_contender() {
        let svg = render(&[Section { chart: Chart::Curves, ..sample() }]).unwrap();
        assert_eq!(centres(&svg).len(), 4);
        let curves = svg.lines().filter(|line| line.starts_with("<polyline") && line.contains("stroke-width=\"2\""));
        assert_eq!(curves.count(), 4, "{svg}");
        assert!(
            svg.contains("floor, buffered &lt;&amp;&gt;") && svg.contains("mean, µs") && svg.contains("median, µs")
        );
    }

    #[test]
    fn lines_show_medians_alone() {
        let svg = render(&[Section { chart: Chart::Lines, ..sample() }]).unwrap();
        assert_eq!(centres(&svg).len(), 2);
        assert!(svg.contains("median, µs") && !svg.contains("mean, µs"), "{svg}");
    }

    #[test]
    fn groups_have_a_numbered_bar_for_every_contender() {
        let svg = render(&[Section { chart: Chart::Groups, ..sample() }]).unwrap();
        // One rectangle is the background.
        assert_eq!(svg.matches("<rect").count(), 3, "{svg}");
        assert!(svg.contains("1 Untorn") && svg.contains("2 floor, buffered &lt;&amp;&gt;"), "{svg}");
    }
}
