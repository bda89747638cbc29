//! A batch: a file of requests, what state it is in, and how it came there.
//!
//! States change along few ways, and those at the end never: what a client has read of a finished batch stays
//! true. The JSON is OpenAI's, field by field.

use crate::line::{Interface, LineProblem};
use crate::problem::StoreError;
use crate::record::{Counts, TokenUsage};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Seconds since 1970.
pub type UnixTime = u64;

/// What state a batch is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BatchStatus {
    /// Its lines are being read.
    Validating,
    /// Its lines are wrong; nothing was sent.
    Failed,
    /// Its requests are being computed.
    InProgress,
    /// All have their records.
    Finalizing,
    /// Done.
    Completed,
    /// Its time was over before all was done.
    Expired,
    /// What is under way may end.
    Cancelling,
    /// Ended by its owner.
    Cancelled,
}

impl BatchStatus {
    /// Its word.
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

    /// Whether it stays as it is.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Failed | Self::Completed | Self::Expired | Self::Cancelled)
    }

    const fn leads_to(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Validating, Self::Failed | Self::InProgress | Self::Cancelling | Self::Expired)
                | (Self::InProgress, Self::Finalizing | Self::Cancelling | Self::Expired)
                | (Self::Finalizing, Self::Completed)
                | (Self::Cancelling, Self::Cancelled)
        )
    }
}

/// A wrong line, as a batch shows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShownProblem {
    code: String,
    message: String,
    param: Option<String>,
    line: Option<usize>,
}

/// One batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Batch {
    /// Its name.
    pub id: String,
    /// Whose it is; empty if nobody is told apart.
    pub owner: String,
    /// The path that its requests are for.
    pub endpoint: String,
    /// Its requests.
    pub input_file_id: String,
    /// How long it may take, as it was asked for.
    pub completion_window: String,
    /// Where its answers are, once there are any.
    pub output_file_id: Option<String>,
    /// Where its failures are, once there are any.
    pub error_file_id: Option<String>,
    /// How far it is.
    pub counts: Counts,
    /// Tokens, as engines count them.
    pub usage: TokenUsage,
    /// What its owner wants to remember.
    pub metadata: Option<Map<String, Value>>,
    /// Seconds that the files of its results are kept, if its owner said.
    #[serde(default)]
    pub output_expires_after: Option<u64>,
    /// Whether its owner wants equal lines computed once.
    #[serde(default)]
    pub identical_once: bool,
    /// When its time is over.
    pub expires_at: UnixTime,
    /// How often somebody took it over: who has an older number may not write.
    pub epoch: u64,
    status: BatchStatus,
    created_at: UnixTime,
    /// When it came to each state, in the order of its states.
    reached: Vec<(BatchStatus, UnixTime)>,
    problems: Vec<ShownProblem>,
}

/// What a batch is made of.
#[derive(Clone, PartialEq, Debug)]
pub struct NewBatch {
    /// Its name.
    pub id: String,
    /// Whose it is.
    pub owner: String,
    /// What its requests are for.
    pub interface: Interface,
    /// Its requests.
    pub input_file_id: String,
    /// How long it may take, and in seconds.
    pub window: (String, u64),
    /// What its owner wants to remember.
    pub metadata: Option<Map<String, Value>>,
}

impl Batch {
    /// A batch that nobody has looked at yet.
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

    /// What state it is in.
    #[must_use]
    pub const fn status(&self) -> BatchStatus {
        self.status
    }

    /// When it was made.
    #[must_use]
    pub const fn created_at(&self) -> UnixTime {
        self.created_at
    }

    /// When it came to its end, if it has.
    #[must_use]
    pub fn ended_at(&self) -> Option<UnixTime> {
        self.reached.last().filter(|(status, _)| status.is_final()).map(|(_, time)| *time)
    }

    /// Changes its state.
    ///
    /// # Errors
    /// If there is no way from the one to the other.
    pub fn reach(&mut self, next: BatchStatus, now: UnixTime) -> Result<(), StoreError> {
        if !self.status.leads_to(next) {
            let (id, from, to) = (&self.id, self.status.word(), next.word());
            return Err(StoreError::Conflict(format!(
                "batch `{id}` is {from} and cannot become {to}"
            )));
        }
        self.status = next;
        self.reached.push((next, now));
        Ok(())
    }

    /// Its lines are wrong.
    ///
    /// # Errors
    /// If they were not being read.
    pub fn fail(
        &mut self,
        problems: &[(Option<usize>, LineProblem)],
        now: UnixTime,
    ) -> Result<(), StoreError> {
        self.reach(BatchStatus::Failed, now)?;
        let shown = |(line, problem): &(Option<usize>, LineProblem)| ShownProblem {
            code: problem.code.to_owned(),
            message: problem.message.clone(),
            param: problem.param.map(str::to_owned),
            line: *line,
        };
        self.problems = problems.iter().map(shown).collect();
        Ok(())
    }

    /// As clients see it.
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
    fn what_has_ended_never_changes() {
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
    fn a_batch_with_wrong_lines_names_them() {
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
