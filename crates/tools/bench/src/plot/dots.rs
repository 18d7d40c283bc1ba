//! A chart with a line for each contender of each row: a dot at its median, a bar between its quartiles.
//!
//! The bar goes from the 25th to the 75th percentile, and the axis of time is logarithmic.

use super::panel::{Area, Drawn, GRID, HEAD_PX, MISSED, OURS, PEER, TEXT_PX, WIDTH_PX, decades, style, text, tick};
use crate::report::section::{Row, Section, Verdict};
use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

/// The ends of the axis. Names stand to the left of it, ratios to the right.
pub const AXIS_LEFT_PX: u32 = 480;
pub const AXIS_RIGHT_PX: u32 = 860;
const LINE_PX: u32 = 18;
/// Room for the numbers and the title of the axis.
const AXIS_HEIGHT_PX: u32 = 48;

/// The number of lines: one for each contender, and an empty one after each row.
fn lines(section: &Section) -> u32 {
    section.rows.iter().map(|row| row.contenders.len() as u32 + 1).sum()
}

/// The height of the whole panel.
pub fn height_px(section: &Section) -> u32 {
    HEAD_PX + lines(section) * LINE_PX + AXIS_HEIGHT_PX + LINE_PX
}

/// Draws the section.
pub fn draw(area: &Area, section: &Section) -> Drawn {
    let (_, plot) = area.split_vertically(HEAD_PX);
    let (plot, _) = plot.split_vertically(lines(section) * LINE_PX + AXIS_HEIGHT_PX);
    let mut chart = ChartBuilder::on(&plot)
        .set_label_area_size(LabelAreaPosition::Left, AXIS_LEFT_PX)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS_HEIGHT_PX)
        .margin_right(WIDTH_PX - AXIS_RIGHT_PX)
        // Lines are counted from the top.
        .build_cartesian_2d(decades(section, |c| [c.p25_us, c.p75_us]).log_scale(), f64::from(lines(section))..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(6)
        .x_label_formatter(&tick)
        .x_desc(format!("time, {} (dot: median; bar: 25th to 75th percentile)", section.unit.name()))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(PEER)
        .label_style(style(TEXT_PX, &PEER))
        .draw()?;
    let mut line = 0.0;
    for row in &section.rows {
        for (n, contender) in row.contenders.iter().enumerate() {
            line += 1.0;
            let colour = if n == 0 { OURS } else { PEER };
            let at = |us: f64| (section.unit.scale_us(us), line - 0.5);
            let quartiles = vec![at(contender.p25_us), at(contender.p75_us)];
            chart.draw_series([PathElement::new(quartiles, colour.mix(0.4).stroke_width(4))])?;
            chart.draw_series([Circle::new(at(contender.median_us), 4, colour.filled())])?;
            let (_, y) = chart.backend_coord(&at(contender.median_us));
            // In the coordinates of the panel, not of the picture.
            let y = y - area.get_base_pixel().1;
            text(area, (AXIS_LEFT_PX as i32 - 12, y), HPos::Right, colour, &contender.name)?;
            if n == 0 {
                text(area, (12, y), HPos::Left, BLACK, &format!("{}, {}", row.cell, row.load))?;
                ratio(area, row, (AXIS_RIGHT_PX as i32 + 16, y))?;
            }
        }
        line += 1.0;
    }
    Ok(())
}

/// The row's ratio and its target, at the end of its first line.
fn ratio(area: &Area, row: &Row, (x, y): (i32, i32)) -> Drawn {
    let Some(ratio) = &row.ratio else { return Ok(()) };
    let target = row.target.map_or(String::new(), |target| format!(" (target {target})"));
    let missed = matches!(row.verdict, Some(Verdict::Missed | Verdict::Waited));
    let colour = if missed { MISSED } else { OURS };
    text(area, (x, y), HPos::Left, colour, &format!("{:.2} ×{target}", ratio.value))?;
    if row.verdict == Some(Verdict::Waited) {
        text(area, (x, y + LINE_PX as i32), HPos::Left, MISSED, "but commits waited")?;
    }
    Ok(())
}
