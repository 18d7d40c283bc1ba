//! Two charts beside each other, of means and of medians, with a curve for each contender over the section's rows.
//!
//! The axis of time is logarithmic.

use super::panel::{Area, Drawn, GRID, HEAD_PX, PEER, TEXT_PX, decades, names, style, text, tick};
use crate::report::section::Section;
use crate::report::statistics::Summary;
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

const COLOURS: [RGBColor; 8] = [
    RGBColor(0x0b, 0x6e, 0x4f),
    RGBColor(0x5f, 0xb4, 0x9c),
    RGBColor(0x9b, 0xcf, 0x53),
    RGBColor(0xb3, 0x26, 0x1e),
    RGBColor(0xe0, 0x8e, 0x45),
    RGBColor(0x7b, 0x5e, 0xa7),
    RGBColor(0x5c, 0x63, 0x70),
    RGBColor(0xb0, 0xb5, 0xbd),
];
const CHART_WIDTH_PX: u32 = 430;
const LEGEND_LEFT_PX: i32 = 2 * CHART_WIDTH_PX as i32 + 16;
/// The height of the whole panel.
pub const HEIGHT_PX: u32 = HEAD_PX + 360;

/// Draws the section.
pub fn draw(area: &Area, section: &Section) -> Drawn {
    let names = names(section);
    let (_, below) = area.split_vertically(HEAD_PX);
    let (left, rest) = below.split_horizontally(CHART_WIDTH_PX);
    let (right, _) = rest.split_horizontally(CHART_WIDTH_PX);
    chart(&left, section, &names, "mean", |c| c.mean_us)?;
    chart(&right, section, &names, "median", |c| c.median_us)?;
    legend(area, &names)
}

/// Draws the section's medians alone, in a chart of twice the width.
pub fn draw_medians(area: &Area, section: &Section) -> Drawn {
    let names = names(section);
    let (_, below) = area.split_vertically(HEAD_PX);
    let (left, _) = below.split_horizontally(2 * CHART_WIDTH_PX);
    chart(&left, section, &names, "median", |c| c.median_us)?;
    legend(area, &names)
}

fn legend(area: &Area, names: &[&str]) -> Drawn {
    for (n, (name, colour)) in names.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let y = HEAD_PX as i32 + 24 + 18 * n as i32;
        area.draw(&PathElement::new(vec![(LEGEND_LEFT_PX, y), (LEGEND_LEFT_PX + 18, y)], colour.stroke_width(3)))?;
        text(area, (LEGEND_LEFT_PX + 24, y), HPos::Left, BLACK, name)?;
    }
    Ok(())
}

fn chart(area: &Area, section: &Section, names: &[&str], what: &str, of: fn(&Summary) -> f64) -> Drawn {
    let last = section.rows.len().max(2) - 1;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .set_label_area_size(LabelAreaPosition::Left, 64)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(
            -0.2..last as f64 + 0.2,
            decades(section, |c| [c.median_us.min(c.mean_us), c.median_us.max(c.mean_us)]).log_scale(),
        )?;
    // A cell consists of a number and the counted things.
    let word = |row: usize, n: usize| section.rows.get(row).and_then(|row| row.cell.split(' ').nth(n)).unwrap_or("");
    let cell = |x: &f64| {
        let row = x.round();
        if (x - row).abs() < 0.01 && row >= 0.0 { word(row as usize, 0).to_owned() } else { String::new() }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(2 * section.rows.len().max(2))
        .x_label_formatter(&cell)
        .x_desc(word(section.rows.len().saturating_sub(1), 1))
        .y_labels(6)
        .y_label_formatter(&tick)
        .y_desc(format!("{what}, {}", section.unit.name()))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(PEER)
        .label_style(style(TEXT_PX, &PEER))
        .draw()?;
    for (name, colour) in names.iter().zip(COLOURS.iter().cycle()) {
        let found = section.rows.iter().map(|row| row.contenders.iter().find(|c| c.name == *name)).enumerate();
        let point = |c: &Summary| section.unit.scale_us(of(c));
        let points: Vec<(f64, f64)> = found.filter_map(|(n, c)| Some((n as f64, point(c?)))).collect();
        chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?;
        chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
    }
    Ok(())
}
