//! What the user has chosen to see: order, filter, pause and position, changed by keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::widgets::TableState;
use serde_json::Value;

/// The keys, as the help shows them.
pub(super) const KEYS: [(&str, &str); 9] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("↑ ↓", "select a pod"),
    ("PgUp PgDn", "move by a page of pods"),
    ("Home End", "move to the first or last pod"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("/", "filter pods and requests; Enter keeps it, Esc clears it"),
    ("p", "pause: keep this snapshot on the screen"),
    ("?", "show or hide this help"),
];

/// Whether a key ends the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Flow {
    Continue,
    Quit,
}

/// What keys are for at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Input {
    #[default]
    Commands,
    Filter,
    Help,
}

/// The order of pods.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Order {
    /// Pods with problems first, because the last ones may not fit.
    #[default]
    Problems,
    Name,
    Load,
    Requests,
    KvUsage,
    Blocks,
    Hits,
}

impl Order {
    const ALL: [Self; 7] = [
        Self::Problems,
        Self::Name,
        Self::Load,
        Self::Requests,
        Self::KvUsage,
        Self::Blocks,
        Self::Hits,
    ];

    /// The column, as people call it.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Problems => "problems",
            Self::Name => "name",
            Self::Load => "load",
            Self::Requests => "requests/s",
            Self::KvUsage => "KV usage",
            Self::Blocks => "blocks",
            Self::Hits => "hit rate",
        }
    }

    fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }

    /// The figure that pods are ordered by, the largest first; an unknown one is the smallest.
    fn figure(self, pod: &Value) -> f64 {
        let value = match self {
            Self::Problems => return f64::from(severity(pod)),
            Self::Name => return 0.0,
            Self::Load => &pod["load"]["requests"],
            Self::Requests => &pod["requests_per_second"],
            Self::KvUsage => &pod["engine"]["kv_usage"],
            Self::Blocks => &pod["blocks"],
            Self::Hits => &pod["hit_rate"],
        };
        value.as_f64().unwrap_or(f64::NEG_INFINITY)
    }
}

/// How serious the problem of a pod is: 0 is none, 2 is down.
pub(super) fn severity(pod: &Value) -> u8 {
    match (pod["health"].as_str(), pod["breaker"].as_str()) {
        (Some("down"), _) => 2,
        (Some("up"), Some("closed")) => 0,
        _ => 1,
    }
}

/// The state of the screen between two snapshots.
#[derive(Default)]
pub(super) struct View {
    pub(super) order: Order,
    pub(super) is_reversed: bool,
    /// Lowercase.
    pub(super) filter: String,
    pub(super) input: Input,
    pub(super) is_paused: bool,
    /// The selected pod and the first one that is shown.
    pub(super) pods: TableState,
    /// Pods that fit on the screen.
    pub(super) page: u16,
}

impl View {
    pub(super) fn press(&mut self, key: KeyEvent) -> Flow {
        if key.kind == KeyEventKind::Release {
            return Flow::Continue;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            let is_interrupt = key.code == KeyCode::Char('c');
            return if is_interrupt { Flow::Quit } else { Flow::Continue };
        }
        match self.input {
            Input::Commands => return self.command(key.code),
            Input::Filter => self.edit_filter(key.code),
            Input::Help => match key.code {
                KeyCode::Char('q') => return Flow::Quit,
                _ => self.input = Input::Commands,
            },
        }
        Flow::Continue
    }

    fn command(&mut self, key: KeyCode) -> Flow {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Flow::Quit,
            KeyCode::Down => self.pods.select_next(),
            KeyCode::Up => self.pods.select_previous(),
            KeyCode::PageDown => self.pods.scroll_down_by(self.page.max(1)),
            KeyCode::PageUp => self.pods.scroll_up_by(self.page.max(1)),
            KeyCode::Home => self.pods.select_first(),
            KeyCode::End => self.pods.select_last(),
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('r') => self.is_reversed = !self.is_reversed,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('/') => self.input = Input::Filter,
            KeyCode::Char('?') => self.input = Input::Help,
            _ => {}
        }
        Flow::Continue
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.input = Input::Commands,
            KeyCode::Esc => {
                self.filter.clear();
                self.input = Input::Commands;
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.extend(letter.to_lowercase()),
            _ => {}
        }
    }

    /// Whether one of the texts contains the filter.
    pub(super) fn matches(&self, texts: &[&Value]) -> bool {
        let contains = |text: &&Value| {
            let text = text.as_str().map_or_else(|| text.to_string(), str::to_lowercase);
            text.contains(&self.filter)
        };
        self.filter.is_empty() || texts.iter().any(contains)
    }

    /// Brings pods into the chosen order; equal ones stay as they are.
    pub(super) fn sort(&self, pods: &mut [&Value]) {
        pods.sort_by(|one, other| match self.order {
            Order::Name => one["name"].as_str().cmp(&other["name"].as_str()),
            order => order.figure(other).total_cmp(&order.figure(one)),
        });
        if self.is_reversed {
            pods.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn press(view: &mut View, keys: &str) -> Flow {
        let press = |key: char| view.press(KeyCode::Char(key).into());
        keys.chars().map(press).last().unwrap()
    }

    #[test]
    fn q_escape_and_control_c_quit_but_escape_first_leaves_filter_and_help() {
        for key in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(View::default().press(key.into()), Flow::Quit);
        }
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for opened in ["/", "?"] {
            let mut view = View::default();
            press(&mut view, opened);
            assert_eq!(view.press(KeyCode::Esc.into()), Flow::Continue);
            assert_eq!(view.input, Input::Commands);
            press(&mut view, opened);
            assert_eq!(view.press(interrupt), Flow::Quit);
        }
    }

    #[test]
    fn every_order_is_reached_by_s_and_puts_the_largest_first() {
        let pod = |name: &str, health: &str, load: u32| json!({"name": name, "health": health, "breaker": "closed", "load": {"requests": load}});
        let pods = [pod("b", "up", 3), pod("c", "down", 1), pod("a", "up", 7)];
        let mut view = View::default();
        let names = |view: &View| -> String {
            let mut sorted: Vec<_> = pods.iter().collect();
            view.sort(&mut sorted);
            sorted.iter().map(|pod| pod["name"].as_str().unwrap()).collect()
        };
        assert_eq!(names(&view), "cba");
        press(&mut view, "s");
        assert_eq!((view.order, names(&view).as_str()), (Order::Name, "abc"));
        press(&mut view, "s");
        assert_eq!((view.order, names(&view).as_str()), (Order::Load, "abc"));
        press(&mut view, "r");
        assert_eq!(names(&view), "cba");
        press(&mut view, "sssss");
        assert_eq!(view.order, Order::Problems, "after the last column comes the first");
    }

    #[test]
    fn a_filter_is_typed_edited_kept_and_cleared() {
        let mut view = View::default();
        press(&mut view, "/Pod-x");
        view.press(KeyCode::Backspace.into());
        view.press(KeyCode::Enter.into());
        assert_eq!((view.filter.as_str(), view.input), ("pod-", Input::Commands));
        assert!(view.matches(&[&json!("my-POD-1")]) && !view.matches(&[&json!("engine")]));
        press(&mut view, "/");
        view.press(KeyCode::Esc.into());
        assert!(view.filter.is_empty() && view.matches(&[]));
        press(&mut view, "/50");
        assert!(view.matches(&[&json!(503)]), "a status is a number");
    }
}
