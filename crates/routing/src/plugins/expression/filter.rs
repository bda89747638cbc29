//! The filter `expression`: a hard rule written by the user.
//!
//! A rule that cannot be computed, such as one that divides by zero, does not hold: a rule that
//! keeps a tenant off a pod must not fail open.

use wornpath_yaml::{Parameter, Takes};

use super::language;
use super::scope::UsedFields;
use super::vocabulary::{Field, FieldNames};
use crate::fleet::Candidate;
use crate::plugin::{Assembly, AssemblyRefused, Make, Plugin};
use crate::plugins::cel::{Program, compile_rule};
use crate::stage::{Decision, Filter, Rejection};

pub(crate) const PLUGIN: Plugin = Plugin {
    name: "expression",
    summary: "Keeps the pods for which a CEL expression is true: a hard rule. A pod for which it cannot be computed, \
              such as by a division by zero, is dropped. Where no pod is left, the rejection names the rule.",
    parameters: &[
        Parameter::required(
            "keep",
            Takes::Text,
            "An expression of type bool, over the fields of the scorer `expression` but for `pod.placed_tokens`; \
             `fleet` is what the filters before this one left.",
        ),
        Parameter::optional(
            "name",
            Takes::Text,
            "What rejections call the rule. Without it they quote the expression, and clients read it.",
        ),
    ],
    needs: &[],
    conflicts: &[],
    example: "expression: {keep: 'tenant.name == \"premium\" ? pod.labels.gpu == \"h100\" : true'}",
    make: Make::Filter(make),
};

struct Rule {
    program: Program<Field>,
    fields: UsedFields,
    /// Its name, or its expression.
    shown: String,
}

fn make(assembly: &mut Assembly<'_>) -> Result<Box<dyn Filter>, AssemblyRefused> {
    let text: String = assembly.get("keep");
    let fields = FieldNames::default();
    let program = compile_rule(&text, &fields)
        .map_err(|error| assembly.refuse("keep", &error.to_string(), &language()))?;
    let fields = UsedFields::new(fields, assembly);
    if fields.placed.is_some() {
        let message = "`pod.placed_tokens` counts what a scorer has sent; a filter sends nothing";
        return Err(assembly.refuse("keep", message, "compare `pod.in_flight_tokens` instead"));
    }
    let shown = assembly.maybe("name").unwrap_or(text);
    Ok(Box::new(Rule { program, fields, shown }))
}

impl Filter for Rule {
    fn keep(&self, decision: &Decision<'_>, candidates: &[Candidate], keep: &mut [bool]) {
        self.program.test(&self.fields.scope(decision, candidates), keep);
    }

    fn why(&self, _decision: &Decision<'_>, _candidate: Candidate) -> String {
        format!("the rule `{}` is not true", self.shown)
    }

    fn rejection(&self, _decision: &Decision<'_>) -> Rejection {
        Rejection::unavailable(&format!("no pod satisfies the rule `{}`", self.shown))
    }
}
