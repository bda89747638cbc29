//! A batch: a file of requests, its status, and when it reached each status.
//!
//! A status has few successors, and a final one has none: a finished batch never changes. The JSON
//! is OpenAI's, field by field.

use crate::line::{Interface, LineProblem};
use crate::record::{Counts, TokenUsage};
use crate::store_error::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Seconds since 1970.
pub type UnixTime = u64;

/// The status of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// Its lines are being validated.
    Validating,
    /// Its lines are invalid and no request was sent, or its files were damaged in the store.
    Failed,
    /// Its requests are being computed.
    InProgress,
    /// All lines have their records.
    Finalizing,
    /// Its result files are ready.
    Completed,
    /// The completion window passed before all lines had their records.
    Expired,
    /// Its owner cancelled it; requests in flight may end.
    Cancelling,
    /// Its owner cancelled it, and it has ended.
    Cancelled,
}

impl BatchStatus {
    /// The status in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it never changes.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    const fn leads_to(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Validating, Self::Failed | Self::InProgress | Self::Cancelling | Self::Expired)
                | (
                    Self::InProgress,
                    Self::Failed | Self::Finalizing | Self::Cancelling | Self::Expired
                )
                | (Self::Finalizing, Self::Completed)
                | (Self::Cancelling, Self::Cancelled)
        )
    }
}

/// An invalid line in the `errors` of a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShownProblem {
    code: String,
    message: String,
    param: Option<String>,
    line: Option<usize>,
}

/// The state of one batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// The batch id.
    pub id: String,
    /// The tenant; empty without tenants.
    pub owner: String,
    /// The API path of its requests.
    pub endpoint: String,
    /// The file of its requests.
    pub input_file_id: String,
    /// The completion window, as its owner wrote it.
    pub completion_window: String,
    /// The file of its responses, once there are any.
    pub output_file_id: Option<String>,
    /// The file of its failed lines, once there are any.
    pub error_file_id: Option<String>,
    /// The lines by their state.
    pub counts: Counts,
    /// Tokens, as engines count them.
    pub usage: TokenUsage,
    /// The metadata of its owner.
    pub metadata: Option<Map<String, Value>>,
    /// Seconds after which its result files expire, if its owner set them.
    #[serde(default)]
    pub output_expires_after: Option<u64>,
    /// Whether identical lines are computed once.
    #[serde(default)]
    pub identical_once: bool,
    /// The end of the completion window.
    pub expires_at: UnixTime,
    /// The epoch of the latest lease: a runner with an older one may not write.
    pub epoch: u64,
    status: BatchStatus,
    created_at: UnixTime,
    /// When it reached each status, in that order.
    reached: Vec<(BatchStatus, UnixTime)>,
    problems: Vec<ShownProblem>,
}

/// The parameters of a new batch.
#[derive(Clone, PartialEq, Debug)]
pub struct NewBatch {
    /// The batch id.
    pub id: String,
    /// The tenant; empty without tenants.
    pub owner: String,
    /// The API of its requests.
    pub interface: Interface,
    /// The file of its requests.
    pub input_file_id: String,
    /// The completion window, as its owner wrote it and in seconds.
    pub window: (String, u64),
    /// The metadata of its owner.
    pub metadata: Option<Map<String, Value>>,
}

/// The most characters of a shown problem. A message may quote a line, and the journal keeps it.
const MOST_SHOWN: usize = 512;

fn shortened(message: &str) -> String {
    match message.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    }
}

impl Batch {
    /// A batch that is not validated yet.
    #[must_use]
    pub fn new(new: NewBatch, now: UnixTime) -> Self {
        Self {
            id: new.id,
            owner: new.owner,
            endpoint: new.interface.path().to_owned(),
            input_file_id: new.input_file_id,
            completion_window: new.window.0,
            output_file_id: None,
            error_file_id: None,
            counts: Counts::default(),
            usage: TokenUsage::default(),
            metadata: new.metadata,
            output_expires_after: None,
            identical_once: false,
            expires_at: now.saturating_add(new.window.1),
            epoch: 0,
            status: BatchStatus::Validating,
            created_at: now,
            reached: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// The current status.
    #[must_use]
    pub const fn status(&self) -> BatchStatus {
        self.status
    }

    /// When it was created.
    #[must_use]
    pub const fn created_at(&self) -> UnixTime {
        self.created_at
    }

    /// When it reached its current status.
    #[must_use]
    pub fn changed_at(&self) -> UnixTime {
        self.reached.last().map_or(self.created_at, |(_, time)| *time)
    }

    /// When it reached its final status, if it has.
    #[must_use]
    pub fn ended_at(&self) -> Option<UnixTime> {
        self.reached.last().filter(|(status, _)| status.is_final()).map(|(_, time)| *time)
    }

    /// Changes the status.
    ///
    /// # Errors
    /// If the next status is no successor of the current one.
    pub fn reach(&mut self, next: BatchStatus, now: UnixTime) -> Result<(), StoreError> {
        if !self.status.leads_to(next) {
            return Err(StoreError::Conflict(format!(
                "batch `{}` is {} and cannot become {}",
                self.id,
                self.status.word(),
                next.word()
            )));
        }
        self.status = next;
        self.reached.push((next, now));
        Ok(())
    }

    /// Fails the batch because of invalid lines, or of files that were damaged in the store.
    ///
    /// # Errors
    /// If it is neither being validated nor in progress.
    pub fn fail(
        &mut self,
        problems: &[(Option<usize>, LineProblem)],
        now: UnixTime,
    ) -> Result<(), StoreError> {
        self.reach(BatchStatus::Failed, now)?;
        let shown = |(line, problem): &(Option<usize>, LineProblem)| ShownProblem {
            code: problem.code.to_owned(),
            message: shortened(&problem.message),
            param: problem.param.map(str::to_owned),
            line: *line,
        };
        self.problems = problems.iter().map(shown).collect();
        Ok(())
    }

    /// The batch object of the API.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let at = |status: BatchStatus| {
            self.reached.iter().find(|(reached, _)| *reached == status).map(|(_, time)| *time)
        };
        let errors = match self.problems.is_empty() {
            true => Value::Null,
            false => json!({"object": "list", "data": self.problems}),
        };
        let TokenUsage { input, cached, output } = self.usage;
        let mut shown = json!({
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": errors,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.word(),
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "in_progress_at": at(BatchStatus::InProgress),
            "expires_at": self.expires_at,
            "finalizing_at": at(BatchStatus::Finalizing),
            "completed_at": at(BatchStatus::Completed),
            "failed_at": at(BatchStatus::Failed),
            "expired_at": at(BatchStatus::Expired),
            "cancelling_at": at(BatchStatus::Cancelling),
            "cancelled_at": at(BatchStatus::Cancelled),
            "request_counts": self.counts,
            "usage": {
                "input_tokens": input,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": output,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": input.saturating_add(output),
            },
            "metadata": self.metadata,
        });
        if self.identical_once {
            shown["identical_once"] = true.into();
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let new = NewBatch {
            id: "batch_1".into(),
            owner: String::new(),
            interface: Interface::Chat,
            input_file_id: "file-1".into(),
            window: ("24h".into(), 86_400),
            metadata: None,
        };
        Batch::new(new, 100)
    }

    #[test]
    fn a_final_status_never_changes() {
        let all = [
            BatchStatus::Validating,
            BatchStatus::Failed,
            BatchStatus::InProgress,
            BatchStatus::Finalizing,
            BatchStatus::Completed,
            BatchStatus::Expired,
            BatchStatus::Cancelling,
            BatchStatus::Cancelled,
        ];
        for end in all.into_iter().filter(|status| status.is_final()) {
            assert!(all.into_iter().all(|next| !end.leads_to(next)), "{end:?}");
        }
        for status in all.into_iter().filter(|status| !status.is_final()) {
            assert!(all.into_iter().any(|next| status.leads_to(next)), "{status:?} is a dead end");
        }
        let mut batch = batch();
        assert!(batch.reach(BatchStatus::Completed, 101).is_err());
        for (status, time) in [
            (BatchStatus::InProgress, 101),
            (BatchStatus::Finalizing, 105),
            (BatchStatus::Completed, 106),
        ] {
            batch.reach(status, time).unwrap();
        }
        let error = batch.reach(BatchStatus::Cancelling, 107).unwrap_err().to_string();
        assert_eq!(error, "batch `batch_1` is completed and cannot become cancelling");
        let json = batch.to_json();
        assert_eq!((&json["in_progress_at"], &json["completed_at"]), (&json!(101), &json!(106)));
        assert_eq!((&json["cancelled_at"], &json["expires_at"]), (&Value::Null, &json!(86_500)));
    }

    #[test]
    fn a_problem_that_quotes_a_long_line_is_shortened() {
        let mut batch = batch();
        let message = "é".repeat(1 << 20);
        let problem = LineProblem { code: "duplicate_custom_id", message, param: None };
        batch.fail(&[(Some(1), problem)], 101).unwrap();
        let json = batch.to_json();
        let shown = json["errors"]["data"][0]["message"].as_str().unwrap();
        assert_eq!(shown, format!("{}…", "é".repeat(512)));
    }

    #[test]
    fn a_batch_with_invalid_lines_names_them() {
        let mut batch = batch();
        let problem = LineProblem { code: "invalid_url", message: "no".into(), param: Some("url") };
        batch.fail(&[(Some(7), problem)], 101).unwrap();
        let json = batch.to_json();
        assert_eq!(json["status"], "failed");
        assert_eq!(
            json["errors"]["data"][0],
            json!({"code": "invalid_url", "message": "no", "param": "url", "line": 7})
        );
        let read: Batch = serde_json::from_value(serde_json::to_value(&batch).unwrap()).unwrap();
        assert_eq!(read, batch);
    }
}
