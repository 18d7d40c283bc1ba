//! The screen of `untorn top`, and its keys.

use crate::commits::Following;
use crate::interval::Interval;
use crate::summary::{COLUMNS, STAGE_COLUMNS, cells, stage_lines};
use crate::watched::{State, Watched, silence};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Table, TableState};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use untorn_terminal::table::bytes;
use untorn_terminal::{Failure, shown, signals};

/// The part of the screen below the stores.
#[derive(Clone, Copy, PartialEq, Eq)]
enum View {
    None,
    Stages,
    Commits,
    Files,
}

/// The stores and the place of the user among them.
struct Screen {
    stores: Vec<Watched>,
    states: Vec<State>,
    chosen: usize,
    view: View,
    /// The store whose commits or files are shown.
    following: Option<Following>,
}

/// Shows the stores until the user ends it.
pub fn run(stores: Vec<Watched>, interval: Duration) -> Result<(), Failure> {
    let states = stores.iter().map(|_| State::NoOwner).collect();
    let mut screen = Screen { stores, states, chosen: 0, view: View::None, following: None };
    let failed = |e: io::Error| Failure::new(format!("cannot use the terminal: {e}"));
    // Ctrl-C is a key here; other signals end the process.
    let restore = || drop(ratatui::try_restore());
    signals::on_interrupt("untorn-top", "ended by a signal", restore).map_err(failed)?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let ended = screen.run(&mut terminal, interval);
    // Also after an error; a panic restores the terminal by itself.
    let restored = ratatui::try_restore();
    ended.and(restored).map_err(failed)
}

impl Screen {
    fn run(&mut self, terminal: &mut ratatui::DefaultTerminal, interval: Duration) -> io::Result<()> {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.states = self.stores.iter_mut().map(Watched::look).collect();
                next = Instant::now() + interval;
            }
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && self.is_end(key)
            {
                return Ok(());
            }
        }
    }

    /// Obeys a key. Returns whether it ends the program.
    fn is_end(&mut self, key: KeyEvent) -> bool {
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc if self.view == View::None => return true,
            KeyCode::Esc => self.view = View::None,
            KeyCode::Up => self.chosen = self.chosen.saturating_sub(1),
            KeyCode::Down => self.chosen = (self.chosen + 1).min(self.stores.len() - 1),
            KeyCode::Char('s') | KeyCode::Enter => self.toggle(View::Stages),
            KeyCode::Char('c') => self.toggle(View::Commits),
            KeyCode::Char('f') => self.toggle(View::Files),
            _ => {}
        }
        let path = self.stores[self.chosen].path();
        match self.view {
            View::None | View::Stages => self.following = None,
            View::Commits | View::Files if self.following.as_ref().is_some_and(|f| f.path() == path) => {}
            View::Commits | View::Files => self.following = Some(Following::start(path)),
        }
        false
    }

    fn toggle(&mut self, view: View) {
        self.view = if self.view == view { View::None } else { view };
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let lines = self.stores.len() as u16 + 1;
        let detail = if self.view == View::None { Constraint::Length(1) } else { Constraint::Min(4) };
        let [stores, below, keys] =
            Layout::vertical([Constraint::Max(lines), detail, Constraint::Length(1)]).areas(frame.area());
        self.draw_stores(frame, stores);
        match self.view {
            View::None => {
                let why = silence(&self.states[self.chosen]).unwrap_or_default();
                frame.render_widget(Paragraph::new(why), below);
            }
            View::Stages => self.draw_stages(frame, below),
            View::Commits => self.draw_commits(frame, below),
            View::Files => self.draw_files(frame, below),
        }
        let help = "up, down: store   s: stages   c: commits   f: files   Esc: back   q: end";
        frame.render_widget(Paragraph::new(help).style(Modifier::DIM), keys);
    }

    fn draw_stores(&self, frame: &mut Frame<'_>, area: Rect) {
        let rows = self.stores.iter().zip(&self.states).map(|(store, state)| Row::new(cells(store.path(), state)));
        let widths = [20, 8, 9, 9, 9, 9, 9, 7, 8, 10, 14, 22].map(Constraint::Min);
        let table = Table::new(rows, widths).header(head(&COLUMNS)).row_highlight_style(Modifier::REVERSED);
        frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(self.chosen));
    }

    fn draw_stages(&self, frame: &mut Frame<'_>, area: Rect) {
        let interval = match &self.states[self.chosen] {
            State::Shown(_, interval) => interval.as_deref(),
            _ => None,
        };
        let lines = interval.map_or(Vec::new(), |interval: &Interval| stage_lines(interval));
        self.draw_table(frame, area, "stages in the last interval", &STAGE_COLUMNS, lines);
    }

    fn draw_commits(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(following) = &self.following else { return };
        let seen = following.seen();
        let lines = seen.commits.iter().rev().take(area.height.into()).map(|commit| {
            let ago = SystemTime::now().duration_since(commit.seen).unwrap_or_default().as_secs();
            let names: Vec<String> = commit.files.iter().map(|file| shown(file).to_string()).collect();
            vec![commit.lsn.to_string(), format!("{ago} s ago"), bytes(commit.bytes), names.join(" ")]
        });
        let title = title("commits since you looked", &seen);
        self.draw_table(frame, area, &title, &["LSN", "seen", "written", "files"], lines.collect());
    }

    fn draw_files(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(following) = &self.following else { return };
        let seen = following.seen();
        let mut files: Vec<_> = seen.files.iter().collect();
        files.sort_by_key(|(_, file)| std::cmp::Reverse((file.commits, file.bytes)));
        let lines = files
            .into_iter()
            .take(area.height.into())
            .map(|(path, file)| vec![shown(path).to_string(), file.commits.to_string(), bytes(file.bytes)]);
        let title = title("files since you looked", &seen);
        self.draw_table(frame, area, &title, &["file", "commits", "written"], lines.collect());
    }

    fn draw_table(
        &self,
        frame: &mut Frame<'_>,
        area: Rect,
        title: &str,
        columns: &[&'static str],
        rows: Vec<Vec<String>>,
    ) {
        let longest = |column: usize| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([columns[column].len()]).max().unwrap_or(0).min(60) as u16
        };
        let widths: Vec<Constraint> = (0..columns.len()).map(|column| Constraint::Length(longest(column))).collect();
        let store = self.stores[self.chosen].path();
        let table = Table::new(rows.into_iter().map(Row::new), widths)
            .header(head(columns))
            .column_spacing(2)
            .block(Block::bordered().title(format!(" {}: {title} ", named(store))));
        frame.render_widget(table, area);
    }
}

fn named(store: &Path) -> String {
    shown(store).to_string()
}

fn title(what: &str, seen: &crate::commits::Seen) -> String {
    let missed = if seen.missed > 0 {
        format!("; {} were applied before they could be read", seen.missed)
    } else {
        String::new()
    };
    let ended = seen.ended.as_ref().map(|why| format!("; {why}")).unwrap_or_default();
    format!("{what}{missed}{ended}")
}

fn head(columns: &[&'static str]) -> Row<'static> {
    Row::new(columns.iter().map(|name| Line::from(*name)).collect::<Vec<_>>())
        .style(Style::new().add_modifier(Modifier::BOLD))
}
