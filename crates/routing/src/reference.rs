//! The reference page of plugins and parameters, written from what the code declares.

use std::fmt::Write;
use std::sync::Arc;

use wornpath_yaml::{Problem, parameter_table, parse};

use crate::assembly::{BuiltPlugin, NamedPlugin, make};
use crate::fleet_spec::{HOLDS, MODEL, POD};
use crate::models::Models;
use crate::plugin::{Blueprint, Plugin, Registry};
use crate::profile::HOLD;
use crate::stage::{Scale, Stage, WhenEmpty};
use crate::transfer::{TRANSFER, Transfer};
use crate::workflow::{PREFILL_DECODE, STEP};

const HEAD: &str = "\
# Plugins and parameters

Written from the code by a test; do not edit. How to write one: [writing-one.md](writing-one.md).

A profile is a map of stages. `prepare` runs once for every request; `filter`, `score` and `pick` run for every
step of the workflow. A plugin is written as `name` or as `name: {parameter: value}`. `wornpath check FILE` says
what is wrong with a profile, `--print` shows it with all defaults, `--graph` draws it.

Every filter also takes `on_empty`: what happens when it drops every pod. `reject` rejects the request, `skip`
skips the filter and marks the plan, `hold` lets the request wait.

Every scorer also takes `weight` (1 by default). Scores from 0 to 1 and costs in milliseconds are added only if
each of the former says with `scale_ms` what the whole way from 1 to 0 costs in milliseconds.
";

impl Registry {
    /// The reference page of these plugins, as Markdown.
    ///
    /// # Panics
    /// If a plugin cannot be made from its own example.
    #[must_use]
    pub fn reference(&self) -> String {
        let mut page = HEAD.to_owned();
        for stage in Stage::ALL {
            let _ = write!(page, "\n## {}\n", stage.key());
            for plugin in self.plugins().iter().filter(|plugin| plugin.stage() == stage) {
                self.describe(plugin, &mut page);
            }
        }
        page.push_str("\n## workflow\n\n`single` (the default), `prefill_decode`, or `steps: [name: {…}, …]`.\n");
        page.push_str("\n### A step, and `single`\n");
        parameter_table(STEP, &mut page);
        page.push_str("\n### prefill_decode\n\nAlso takes `prefill` and `decode`, each with the parameters of a step.\n");
        parameter_table(PREFILL_DECODE, &mut page);
        let words: Vec<_> =
            Transfer::built_in().iter().map(|transfer| format!("`{}`", transfer.word())).collect();
        let _ = write!(
            page,
            "\n## transfers\n\nTransfer protocols of the profile's own, beside the built-in ones ({}), which are written the same way: \
             `transfers: {{name: {{…}}}}`. In a template, a text `<name>` stands for a value; inside of a longer text, for the text of the value; and the \
             value of the key `<<` is an object that the other keys change.\n",
            words.join(", ")
        );
        parameter_table(TRANSFER, &mut page);
        page.push_str(
            "\n## hold\n\nA request waits if the chosen pod does not pass every filter in `unless`, \
             or if a filter with `on_empty: hold` drops every pod.\n",
        );
        parameter_table(HOLD, &mut page);
        page.push_str(
            "\n## speculate\n\n`off`, or how long a pod is expected to hold what it was just sent \
             (`10s` by default, where the prompt is hashed). A request that the engine refuses, with any status but \
             2xx, or that never reached it, takes back what was expected of it alone: engines refuse before they \
             compute.\n",
        );
        page.push_str(
            "\n## without_events\n\nWhat becomes of pods that never tell what they hold: `approximate` (the default), and it \
             is guessed from what they were sent, within the room that `kv_tokens` gives; or `refuse`, and a fleet that \
             has such a pod is refused. Only for profiles that look at what pods hold.\n",
        );
        page.push_str(
            "\n## A described fleet\n\nFor `wornpath explain --fleet` and `wornpath check --fleet`: a map of `models` and \
             `pods`, each a list.\n\n### A model\n",
        );
        parameter_table(MODEL, &mut page);
        page.push_str("\n### A pod\n\nAlso takes `holds`, a list of prompts that it holds.\n");
        parameter_table(POD, &mut page);
        page.push_str(
            "\n### A held prompt\n\n`tokens`, `text` or `messages`, a list as in a request.\n",
        );
        parameter_table(HOLDS, &mut page);
        page
    }

    fn describe(&self, plugin: &Plugin, page: &mut String) {
        let made = self.example(plugin);
        let _ = write!(page, "\n### {}\n\n{}\n", plugin.name, plugin.summary);
        let nature = match &made.plugin {
            BuiltPlugin::Score(scorer) => Some(match scorer.scale() {
                Scale::Unit => "from 0 to 1, more is better",
                Scale::Milliseconds => "in milliseconds, less is better",
            }),
            BuiltPlugin::Filter(filter) => Some(match filter.when_empty() {
                WhenEmpty::Reject => "`on_empty: reject` by default",
                WhenEmpty::Skip => "`on_empty: skip` by default",
                WhenEmpty::Hold => "`on_empty: hold` by default",
            }),
            BuiltPlugin::Prepare(_) | BuiltPlugin::Pick(_) => None,
        };
        let mut facts: Vec<String> = nature.map(str::to_owned).into_iter().collect();
        let slots = |slots: &[String]| {
            slots.iter().map(|slot| format!("`{slot}`")).collect::<Vec<_>>().join(", ")
        };
        if !made.view.reads.is_empty() {
            facts.push(format!("reads {}", slots(&made.view.reads)));
        }
        if !made.view.writes.is_empty() {
            facts.push(format!("writes {}", slots(&made.view.writes)));
        }
        for (word, named) in [("needs", plugin.needs), ("excludes", plugin.conflicts)] {
            if !named.is_empty() {
                let names: Vec<_> = named.iter().map(|(_, name)| format!("`{name}`")).collect();
                facts.push(format!("{word} {}", names.join(", ")));
            }
        }
        if !facts.is_empty() {
            let _ = write!(page, "\nIn short: {}.\n", facts.join("; "));
        }
        parameter_table(plugin.parameters, page);
        let _ = write!(page, "\n```yaml\n{}\n```\n", plugin.example);
    }

    fn example(&self, plugin: &Plugin) -> NamedPlugin {
        let mut draft = Blueprint::new(self, &Arc::<Models>::default());
        let node = parse(plugin.example).unwrap_or_else(|problem| {
            panic!("example of `{}`: {}", plugin.name, problem.message())
        });
        let made = make(&mut draft, &node, plugin.stage(), 0);
        made.unwrap_or_else(|_| {
            let problems: Vec<_> = draft.problems.iter().map(Problem::message).collect();
            panic!("example of `{}`: {}", plugin.name, problems.join("; "))
        })
    }
}
