//! Which form of content a template expects, decided as the engines decide it: by its source.
//!
//! A template that loops over the content of a message gets parts, any other gets text. Engines
//! search the syntax tree for such a loop, and each has its own idea of where it may be. To run the
//! template instead would be simpler and often decide otherwise: a template may print parts without
//! a loop, or loop only over parts that are images.

use minijinja::machinery::ast::{Call, CallArg, Expr, ForLoop, Macro, Set, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use super::ContentForm;
use crate::engine_rules::EngineRules;

/// The form of content that an engine passes to a template.
pub(super) fn content_form(source: &str, syntax: SyntaxConfig, engine: EngineRules) -> ContentForm {
    /// Words by which SGLang takes a template for one of media.
    const MEDIA: [&str; 4] = ["image", "audio", "video", "vision"];
    if engine == EngineRules::Sglang && MEDIA.iter().any(|word| source.contains(word)) {
        return ContentForm::Parts;
    }
    let Ok(template) = parse(source, "", syntax) else { return ContentForm::Text };
    let mut nodes = Nodes::default();
    nodes.statement(&template, None);
    let loops_over_content = match engine {
        EngineRules::Vllm => nodes.loop_over_content().unwrap_or(false),
        EngineRules::Sglang => nodes.loops.iter().any(|(each, _)| {
            ["message", "msg", "m"].iter().any(|name| is_content_of(&each.iter, name))
        }),
    };
    if loops_over_content { ContentForm::Parts } else { ContentForm::Text }
}

/// The nodes of a template in which engines look for a loop.
#[derive(Default)]
struct Nodes<'a, 's> {
    /// With the position of the innermost macro around each.
    loops: Vec<(&'a ForLoop<'s>, Option<usize>)>,
    sets: Vec<&'a Set<'s>>,
    macros: Vec<&'a Macro<'s>>,
    calls: Vec<&'a Call<'s>>,
}

impl<'a, 's> Nodes<'a, 's> {
    /// Whether vLLM finds a loop over content; none where its search fails.
    fn loop_over_content(&self) -> Option<bool> {
        let messages = self.names_of_messages()?;
        let mut items = Vec::new();
        for (each, _) in &self.loops {
            if messages.iter().any(|name| is_name(&each.iter, name)) {
                items.push(name_of(&each.target)?);
            }
        }
        let is_content = |value: &Expr<'_>| items.iter().any(|name| is_content_of(value, name));
        let parameters = self.content_parameters(&is_content);
        for (each, within) in &self.loops {
            let is_found = is_content(&each.iter)
                || match (name_of(&each.iter), within) {
                    (Some(name), Some(own)) => parameters[*own].contains(&name),
                    (Some(name), None) => name == "content",
                    (None, _) => false,
                };
            if is_found {
                name_of(&each.target)?;
                return Some(true);
            }
        }
        Some(false)
    }

    /// Names that hold the messages or some of them.
    fn names_of_messages(&self) -> Option<Vec<&'s str>> {
        let mut names = vec!["messages"];
        let mut at = 0;
        while let Some(name) = names.get(at).copied() {
            for set in self.sets.iter().filter(|set| is_name(&set.expr, name)) {
                let target = name_of(&set.target)?;
                if !names.contains(&target) {
                    names.push(target);
                }
            }
            at += 1;
        }
        Some(names)
    }

    /// The parameters of each macro that get content in some call.
    fn content_parameters(&self, is_content: &impl Fn(&Expr<'_>) -> bool) -> Vec<Vec<&'s str>> {
        let of = |own: &&'a Macro<'s>| {
            let parameters: Vec<_> = own.args.iter().filter_map(name_of).collect();
            let mut found = Vec::new();
            let own_calls = self.calls.iter().filter(|call| name_of(&call.expr) == Some(own.name));
            for call in own_calls {
                let mut position = 0;
                for argument in &call.args {
                    match argument {
                        CallArg::Pos(value) => {
                            let name = parameters.get(position);
                            found.extend(name.filter(|_| is_content(value)));
                            position += 1;
                        }
                        CallArg::Kwarg(name, value) if is_content(value) => {
                            found.extend(parameters.iter().find(|known| *known == name));
                        }
                        _ => {}
                    }
                }
            }
            found
        };
        self.macros.iter().map(of).collect()
    }

    fn statements(&mut self, all: &'a [Stmt<'s>], within: Option<usize>) {
        all.iter().for_each(|statement| self.statement(statement, within));
    }

    fn statement(&mut self, statement: &'a Stmt<'s>, within: Option<usize>) {
        match statement {
            Stmt::Template(template) => self.statements(&template.children, within),
            Stmt::EmitExpr(emit) => self.expression(&emit.expr),
            Stmt::ForLoop(each) => {
                self.loops.push((&**each, within));
                self.expression(&each.iter);
                each.filter_expr.iter().for_each(|filter| self.expression(filter));
                self.statements(&each.body, within);
                self.statements(&each.else_body, within);
            }
            Stmt::IfCond(branch) => {
                self.expression(&branch.expr);
                self.statements(&branch.true_body, within);
                self.statements(&branch.false_body, within);
            }
            Stmt::WithBlock(with) => {
                with.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&with.body, within);
            }
            Stmt::Set(set) => {
                self.sets.push(set);
                self.expression(&set.expr);
            }
            Stmt::SetBlock(set) => self.statements(&set.body, within),
            Stmt::FilterBlock(filter) => self.statements(&filter.body, within),
            Stmt::Macro(own) => {
                self.macros.push(own);
                let position = self.macros.len() - 1;
                self.statements(&own.body, Some(position));
            }
            Stmt::CallBlock(block) => {
                self.call(&block.call);
                self.statements(&block.macro_decl.body, within);
            }
            Stmt::Do(call) => self.call(&call.call),
            _ => {}
        }
    }

    fn call(&mut self, call: &'a Call<'s>) {
        self.calls.push(call);
        self.expression(&call.expr);
        self.arguments(&call.args);
    }

    fn arguments(&mut self, all: &'a [CallArg<'s>]) {
        for argument in all {
            match argument {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn expression(&mut self, expression: &'a Expr<'s>) {
        match expression {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(of) => {
                let bounds = [&of.start, &of.stop, &of.step];
                bounds.into_iter().flatten().for_each(|bound| self.expression(bound));
                self.expression(&of.expr);
            }
            Expr::UnaryOp(of) => self.expression(&of.expr),
            Expr::BinOp(of) => [&of.left, &of.right].into_iter().for_each(|it| self.expression(it)),
            Expr::Compare(of) => {
                self.expression(&of.expr);
                of.ops.iter().for_each(|next| self.expression(&next.expr));
            }
            Expr::IfExpr(of) => {
                let parts = [Some(&of.test_expr), Some(&of.true_expr), of.false_expr.as_ref()];
                parts.into_iter().flatten().for_each(|part| self.expression(part));
            }
            Expr::Filter(of) => {
                of.expr.iter().for_each(|input| self.expression(input));
                self.arguments(&of.args);
            }
            Expr::Test(of) => {
                self.expression(&of.expr);
                self.arguments(&of.args);
            }
            Expr::GetAttr(of) => self.expression(&of.expr),
            Expr::GetItem(of) => {
                self.expression(&of.expr);
                self.expression(&of.subscript_expr);
            }
            Expr::Call(call) => self.call(call),
            Expr::List(of) => of.items.iter().for_each(|item| self.expression(item)),
            Expr::Tuple(of) => of.items.iter().for_each(|item| self.expression(item)),
            Expr::Map(of) => {
                of.keys.iter().chain(&of.values).for_each(|item| self.expression(item));
            }
        }
    }
}

/// The name that is set or called.
fn name_of<'s>(target: &Expr<'s>) -> Option<&'s str> {
    match target {
        Expr::Var(name) => Some(name.id),
        _ => None,
    }
}

/// Without the filters, tests and slices around it.
fn bare<'a, 's>(value: &'a Expr<'s>) -> &'a Expr<'s> {
    match value {
        Expr::Filter(filter) => filter.expr.as_ref().map_or(value, bare),
        Expr::Test(test) => bare(&test.expr),
        Expr::Slice(slice) => bare(&slice.expr),
        _ => value,
    }
}

fn is_name(value: &Expr<'_>, name: &str) -> bool {
    name_of(bare(value)) == Some(name)
}

/// Whether a value is `name.content` or `name['content']`.
fn is_content_of(value: &Expr<'_>, name: &str) -> bool {
    match bare(value) {
        Expr::GetAttr(get) => get.name == "content" && name_of(&get.expr) == Some(name),
        Expr::GetItem(get) => {
            let is_content = matches!(&get.subscript_expr, Expr::Const(it) if it.value.as_str() == Some("content"));
            is_content && name_of(&get.expr) == Some(name)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forms(source: &str) -> [ContentForm; 2] {
        [EngineRules::Vllm, EngineRules::Sglang]
            .map(|engine| content_form(source, super::super::syntax(), engine))
    }

    #[test]
    fn a_loop_over_content_is_found_where_each_engine_looks_for_it() {
        use ContentForm::{Parts, Text};
        let looped = "{% for p in m.content %}{{ p.text }}{% endfor %}";
        for (source, expected) in [
            (format!("{{% for m in messages %}}{looped}{{% endfor %}}"), [Parts, Parts]),
            ("{% for x in messages %}{{ x.content }}{% endfor %}".to_owned(), [Text, Text]),
            (
                "{% for x in messages %}{% for p in x['content'] %}{% endfor %}{% endfor %}".to_owned(),
                [Parts, Text],
            ),
            (
                "{% set rest = messages[1:] %}{% for x in rest | list %}{% for p in x.content | reverse %}{% endfor %}{% endfor %}"
                    .to_owned(),
                [Parts, Text],
            ),
            // Not a loop over messages, or one over a part of the content.
            (looped.to_owned(), [Text, Parts]),
            (
                "{% for x in messages %}{% for p in x.content.parts %}{% endfor %}{% endfor %}".to_owned(),
                [Text, Text],
            ),
            ("{% for p in content %}{{ p }}{% endfor %}".to_owned(), [Parts, Text]),
            (
                "{% macro f(a, b) %}{% for p in b %}{{ p }}{% endfor %}{% endmacro %}{% for x in messages %}{{ f(1, x.content) }}{% endfor %}"
                    .to_owned(),
                [Parts, Text],
            ),
            (
                "{% macro f(a, b) %}{% for p in a %}{{ p }}{% endfor %}{% endmacro %}{% for x in messages %}{{ f(1, b=x.content) }}{% endfor %}"
                    .to_owned(),
                [Text, Text],
            ),
            (
                "{% macro f(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}{{ f(1) }}".to_owned(),
                [Text, Text],
            ),
            ("{# video #}{{ messages[0].content }}".to_owned(), [Text, Parts]),
            // The search fails at a target that is not a name.
            (
                format!("{{% set n = namespace(m=1) %}}{{% set n.m = messages | length %}}{{% for m in messages %}}{looped}{{% endfor %}}"),
                [Text, Parts],
            ),
            ("{% for".to_owned(), [Text, Text]),
        ] {
            assert_eq!(forms(&source), expected, "{source}");
        }
    }
}
