//! The traffic of a random case: sessions and single prompts of many tenants, at the load that the
//! case asks for.

use super::axes::{Axes, BLOCK, Kind};
use super::capacity::fitted_to_load;
use crate::distribution::{Zipf, exponential, log_normal, log_uniform};
use std::time::Duration;
use wornpath_routing::Rng;
use wornpath_sim::replay::{ReplayFleet, Trace, TraceStart, TraceTurn};

/// The longest prompt.
const MAX_TOKENS: usize = 64_000;
/// Pieces of time with an arrival rate of their own.
const PIECES: usize = 64;

/// The traffic of a case on its fleet.
pub(crate) fn traffic(axes: &Axes, fleet: &ReplayFleet) -> Trace {
    let mut generator = Generator::new(axes, fleet);
    generator.fill();
    let trace = Trace { block_size: BLOCK, turns: generator.turns };
    fitted_to_load(trace, axes, fleet)
}

/// A prompt so far, as the names of its full blocks and the tokens after them.
#[derive(Clone, Debug)]
struct Context {
    blocks: Vec<u64>,
    /// Names what has come since the last full block.
    tail: u64,
    rest: usize,
}

/// A number that depends on both.
fn mixed(one: u64, other: u64) -> u64 {
    Rng::new(one.rotate_left(29) ^ other.wrapping_mul(0xD6E8_FEB8_6659_FD93)).bits()
}

impl Context {
    fn of_adapter(adapter: usize) -> Self {
        Self { blocks: Vec::new(), tail: adapter as u64, rest: 0 }
    }

    /// Appends the first `tokens` tokens of a text. Equal texts after equal contexts give equal
    /// blocks.
    fn append(&mut self, text: u64, tokens: usize) {
        let full = (self.rest + tokens) / BLOCK;
        self.tail = mixed(self.tail, text);
        for at in 0..full {
            let before = self.blocks.last().copied().unwrap_or(0);
            self.blocks.push(mixed(mixed(before, self.tail), at as u64));
        }
        self.rest = (self.rest + tokens) % BLOCK;
        self.tail = mixed(self.tail, self.rest as u64);
    }

    fn tokens(&self) -> usize {
        self.blocks.len() * BLOCK.get() + self.rest
    }
}

struct Generator<'a> {
    axes: &'a Axes,
    rng: Rng,
    turns: Vec<TraceTurn>,
    next_text: u64,
    max_tokens: usize,
    tenants: Zipf,
    /// The tokens that each tenant's prompts begin with.
    tenant_tokens: Vec<usize>,
    /// The documents of each kind of traffic: name and tokens.
    documents: Vec<Vec<(u64, usize)>>,
    /// For each piece of time the share of the arrivals in it and before.
    arrivals: Vec<f64>,
    span: f64,
}

/// A session's tenant, number and next start.
#[derive(Clone, Copy)]
struct SessionState {
    tenant: usize,
    session: usize,
    start: TraceStart,
}

impl<'a> Generator<'a> {
    fn new(axes: &'a Axes, fleet: &ReplayFleet) -> Self {
        let mut rng = Rng::new(axes.seed.wrapping_add(1 << 40));
        let kv_tokens = fleet.kv_tokens.unwrap_or(fleet.engine.kv_tokens());
        let max_tokens = MAX_TOKENS.min(kv_tokens / 3);
        // What a tenant's prompts begin with always leaves room for a question.
        let tenant_tokens = (0..axes.tenants)
            .map(|_| log_normal(&mut rng, axes.tenant_tokens, 0.7).min(24_000.0) as usize)
            .map(|tokens| tokens.min(max_tokens / 2))
            .collect();
        let mut next_text = 1 << 32;
        let documents = axes.kinds.iter().map(|kind| match kind {
            Kind::Documents { documents, tokens, .. } => (0..*documents)
                .map(|_| {
                    next_text += 1;
                    (next_text, log_normal(&mut rng, *tokens, 0.5) as usize)
                })
                .collect(),
            _ => Vec::new(),
        });
        let documents = documents.collect();
        let mut sum = 0.0;
        let mut arrivals: Vec<f64> = (0..PIECES)
            .map(|at| {
                let day = (std::f64::consts::PI * at as f64 / PIECES as f64).sin();
                let ramp = 1.0 + (axes.ramp - 1.0) * day;
                sum += ramp * log_normal(&mut rng, 1.0, axes.burstiness);
                sum
            })
            .collect();
        arrivals.iter_mut().for_each(|share| *share /= sum);
        let session = |kind: &Kind| match kind {
            Kind::Chat { turns, think, .. } | Kind::Agents { turns, think, .. } => turns * think,
            _ => 0.0,
        };
        let longest = axes.kinds.iter().map(session).fold(10.0, f64::max);
        Self {
            axes,
            turns: Vec::new(),
            next_text,
            max_tokens,
            tenants: Zipf::new(axes.tenants, axes.skew),
            tenant_tokens,
            documents,
            arrivals,
            span: 2.0 * longest,
            rng,
        }
    }

    fn fill(&mut self) {
        let wanted = self.axes.requests();
        let crowd = (wanted as f64 * self.axes.flash_crowd) as usize;
        let mut turns_of_kind = vec![0; self.axes.kinds.len()];
        while self.turns.len() + crowd < wanted {
            // Each kind of traffic has as many requests as the others.
            let kind = (0..turns_of_kind.len()).min_by_key(|at| turns_of_kind[*at]).unwrap_or(0);
            let before = self.turns.len();
            self.add(kind);
            turns_of_kind[kind] += self.turns.len() - before;
        }
        self.add_crowd(crowd);
    }

    fn new_text(&mut self) -> u64 {
        self.next_text += 1;
        self.next_text
    }

    fn start(&mut self) -> TraceStart {
        let unit = self.rng.unit();
        let piece = self.arrivals.partition_point(|share| *share <= unit).min(PIECES - 1);
        let seconds = self.span * (piece as f64 + self.rng.unit()) / PIECES as f64;
        TraceStart::At(Duration::from_secs_f64(seconds))
    }

    /// A tenant and what its prompts begin with.
    fn tenant(&mut self) -> (usize, Context) {
        let tenant = self.tenants.draw(&mut self.rng);
        let mut context = Context::of_adapter(tenant % self.axes.adapters);
        context.append(1, self.axes.common_tokens as usize);
        context.append(2 + tenant as u64, self.tenant_tokens[tenant]);
        (tenant, context)
    }

    /// Adds new text of about so many tokens.
    fn append_new(&mut self, context: &mut Context, median: f64) {
        let tokens = log_normal(&mut self.rng, median, 0.8).max(1.0) as usize;
        let text = self.new_text();
        context.append(text, tokens);
    }

    /// Adds a turn unless its prompt is too long, and returns its number.
    fn add_turn(&mut self, context: &Context, of: SessionState) -> Option<usize> {
        if context.tokens() > self.max_tokens {
            return None;
        }
        let output = log_normal(&mut self.rng, self.axes.output_tokens, 0.7).clamp(1.0, 2000.0);
        self.turns.push(TraceTurn {
            start: of.start,
            prompt_tokens: context.tokens().max(1),
            output_tokens: output as usize,
            blocks: context.blocks.as_slice().into(),
            session: Some(of.session),
            tenant: Some(of.tenant as u32),
        });
        Some(self.turns.len() - 1)
    }

    fn add(&mut self, kind: usize) {
        let (tenant, mut context) = self.tenant();
        let state = SessionState { tenant, session: self.turns.len(), start: self.start() };
        match self.axes.kinds[kind] {
            Kind::Single { tokens } => {
                let tokens = log_normal(&mut self.rng, tokens, 1.0) as usize;
                let text = self.new_text();
                context.append(text, tokens.min(self.max_tokens.saturating_sub(context.tokens())));
                self.add_turn(&context, state);
            }
            Kind::Chat { turns, added, think } => {
                let turns = log_normal(&mut self.rng, turns, 0.5).max(1.0) as usize;
                self.add_session(context, state, turns, [added, think], 0);
            }
            Kind::Agents { turns, added, think, fan_out } => {
                let turns = log_normal(&mut self.rng, turns, 0.4).max(1.0) as usize;
                self.add_session(context, state, turns, [added, think], fan_out);
            }
            Kind::Documents { each, .. } => {
                let popular = Zipf::new(self.documents[kind].len(), 0.7);
                for _ in 0..each {
                    let (text, tokens) = self.documents[kind][popular.draw(&mut self.rng)];
                    if context.tokens() + tokens < self.max_tokens {
                        context.append(text, tokens);
                    }
                }
                self.append_new(&mut context, 60.0);
                self.add_turn(&context, state);
            }
        }
    }

    /// A session whose turns add about `added` tokens after about `think` seconds. Of three turns
    /// one calls `fan_out` sub-agents, whose contexts begin with that of the session.
    fn add_session(
        &mut self,
        mut context: Context,
        mut state: SessionState,
        turns: usize,
        [added, think]: [f64; 2],
        fan_out: usize,
    ) {
        for _ in 0..turns {
            self.append_new(&mut context, added);
            let Some(mut last) = self.add_turn(&context, state) else { return };
            if fan_out > 0 && self.rng.unit() < 0.33 {
                let caller = last;
                for sub_agent in 0..fan_out {
                    let mut context = context.clone();
                    let delay = Duration::from_millis(20 * sub_agent as u64);
                    let start = TraceStart::After { turn: caller, delay };
                    self.append_new(&mut context, added);
                    let session = self.turns.len();
                    last = self
                        .add_turn(&context, SessionState { session, start, ..state })
                        .unwrap_or(last);
                }
            }
            let delay = Duration::from_secs_f64(exponential(&mut self.rng, think));
            state.start = TraceStart::After { turn: last, delay };
        }
    }

    /// Requests of all tenants about one new document, within a fiftieth of the time.
    fn add_crowd(&mut self, requests: usize) {
        if requests == 0 {
            return;
        }
        let mut document = Context::of_adapter(0);
        let text = self.new_text();
        let tokens = log_uniform(&mut self.rng, 1000.0, 16_000.0) as usize;
        document.append(text, tokens.min(self.max_tokens / 2));
        let at = (0.2 + 0.6 * self.rng.unit()) * self.span;
        for _ in 0..requests {
            let mut context = document.clone();
            self.append_new(&mut context, 50.0);
            let seconds = at + self.span / 50.0 * self.rng.unit();
            let start = TraceStart::At(Duration::from_secs_f64(seconds));
            let tenant = self.tenants.draw(&mut self.rng);
            let session = self.turns.len();
            self.add_turn(&context, SessionState { tenant, session, start });
        }
    }
}
