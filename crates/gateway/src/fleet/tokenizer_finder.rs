//! The ways to tokenizers, which the program around the gateway provides, and the searches under way.

use crate::fleet::engine_facts::ModelOrigin;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use wornpath_routing::{Name, Tokenize};

/// Limit on searches: an engine may list any number of models.
const MAX_SEARCHES: usize = 64;

/// A tokenizer that was found.
pub struct FoundTokenizer {
    /// The tokenizer.
    pub tokenizer: Arc<dyn Tokenize>,
    /// The folder or the repository with its revision, for people.
    pub source: String,
}

/// Why no tokenizer was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotFound {
    /// A repetition would fail alike.
    Final(String),
    /// It may be there later.
    Now(String),
}

/// What a search returns: boxed, because the way to tokenizers is chosen at run time.
pub type Found<'a> = Pin<Box<dyn Future<Output = Result<FoundTokenizer, NotFound>> + Send + 'a>>;

/// The ways to tokenizers.
pub trait FindTokenizer: Send + Sync {
    /// One on this machine; may block for as long as files are read.
    ///
    /// # Errors
    /// If there is one that cannot be used.
    fn local(&self, model: &ModelOrigin) -> Result<Option<FoundTokenizer>, NotFound>;

    /// One that must be downloaded.
    fn remote<'a>(&'a self, model: &'a ModelOrigin) -> Found<'a>;
}

/// The searches, by model.
#[derive(Default)]
pub(crate) struct TokenizerSearches {
    finder: OnceLock<Arc<dyn FindTokenizer>>,
    searches: Mutex<HashMap<Name, Search>>,
}

/// The last search for a model's tokenizer.
struct Search {
    origin: ModelOrigin,
    /// The last failure.
    problem: Option<String>,
    is_over: bool,
}

impl TokenizerSearches {
    /// Seeks tokenizers from now on.
    pub(crate) fn enable(&self, finder: Arc<dyn FindTokenizer>) {
        let _ = self.finder.set(finder);
    }

    pub(crate) fn finder(&self) -> Option<&Arc<dyn FindTokenizer>> {
        self.finder.get()
    }

    /// Whether tokenizers are sought at all.
    pub(crate) fn is_enabled(&self) -> bool {
        self.finder.get().is_some()
    }

    /// Why the last search for a model's tokenizer failed.
    pub(crate) fn problem(&self, model: &Name) -> Option<String> {
        match self.is_enabled() {
            true => self.searches().get(model)?.problem.clone(),
            false => Some("this router seeks none".to_owned()),
        }
    }

    /// Notes that a search begins; false if one is under way, or one of the same origin has failed
    /// for good, or too many are known.
    pub(crate) fn begin(&self, model: &Name, origin: &ModelOrigin) -> bool {
        let mut searches = self.searches();
        let last = searches.get(model);
        if last.is_some_and(|last| !last.is_over || last.origin == *origin) {
            return false;
        }
        if searches.len() >= MAX_SEARCHES {
            searches.retain(|_, search| !search.is_over);
        }
        if searches.len() >= MAX_SEARCHES {
            return false;
        }
        let search = Search { origin: origin.clone(), problem: None, is_over: false };
        searches.insert(model.clone(), search);
        true
    }

    /// Forgets a search that has ended.
    pub(crate) fn end(&self, model: &Name) {
        self.searches().remove(model);
    }

    /// Keeps the failure of a search that has ended.
    pub(crate) fn give_up(&self, model: &Name) {
        if let Some(search) = self.searches().get_mut(model) {
            search.is_over = true;
        }
    }

    /// Records why a search failed. Returns whether that is new.
    pub(crate) fn record(&self, model: &Name, problem: &str) -> bool {
        let mut searches = self.searches();
        let Some(search) = searches.get_mut(model) else { return false };
        let last = search.problem.replace(problem.to_owned());
        last.as_deref() != Some(problem)
    }

    fn searches(&self) -> MutexGuard<'_, HashMap<Name, Search>> {
        self.searches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
