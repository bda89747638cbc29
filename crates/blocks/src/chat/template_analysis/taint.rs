//! Taint analysis: follows contents through a template.
//!
//! It is flow-insensitive: a name has one kind in the whole template, wherever it is set, so the
//! result holds for every path through the template.

use std::collections::HashMap;

use minijinja::Value as Jinja;
use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CallType, CompareOpKind, Expr, Stmt, UnaryOpKind,
};

use super::TemplateAnalysis;

/// The conditions on contents; `None` if the output may depend on them otherwise.
pub(super) fn analyse(template: &Stmt<'_>) -> Option<TemplateAnalysis> {
    let mut taint = Taint::default();
    taint.names.insert("messages".to_owned(), TaintKind::Messages);
    loop {
        taint.has_changed = false;
        taint.statement(template)?;
        if !taint.has_changed {
            return Some(taint.conditions);
        }
    }
}

/// What a value may contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TaintKind {
    /// Independent of contents.
    Plain,
    /// Plain, or a content.
    Content,
    /// Plain, or a text that includes contents.
    Mixed,
    /// The parts of a split content: one part, by the conditions.
    Parts,
    Message,
    Messages,
    Namespace,
    /// The `loop` object, which also has the previous and the next message.
    Loop,
    /// Any of these; only a test whether it is defined is allowed.
    Anything,
}

impl TaintKind {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (one, other) if one == other => one,
            (Self::Plain | Self::Content, Self::Plain | Self::Content) => Self::Content,
            (one, other) if one.is_text() && other.is_text() => Self::Mixed,
            _ => Self::Anything,
        }
    }

    const fn is_text(self) -> bool {
        matches!(self, Self::Plain | Self::Content | Self::Mixed)
    }
}

#[derive(Default)]
struct Taint {
    names: HashMap<String, TaintKind>,
    /// Attributes of namespaces, by name.
    attributes: HashMap<String, TaintKind>,
    macros: Vec<String>,
    conditions: TemplateAnalysis,
    has_changed: bool,
}

/// Every method returns `None` for a construct that is not known to be harmless, which ends the
/// analysis.
impl Taint {
    fn statements(&mut self, all: &[Stmt<'_>]) -> Option<()> {
        all.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Option<()> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children)?,
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
            Stmt::EmitExpr(emit) => self.text(&emit.expr).map(drop)?,
            Stmt::IfCond(branch) => {
                let always = self.constant(&branch.expr);
                self.kind(&branch.expr)?;
                if always != Some(false) {
                    self.statements(&branch.true_body)?;
                }
                if always != Some(true) {
                    self.statements(&branch.false_body)?;
                }
            }
            Stmt::ForLoop(each) if !each.recursive => {
                let item = match self.kind(&each.iter)? {
                    TaintKind::Plain => TaintKind::Plain,
                    TaintKind::Messages => TaintKind::Message,
                    TaintKind::Parts => TaintKind::Content,
                    _ => return None,
                };
                self.assign(&each.target, item)?;
                if let Some(filter) = &each.filter_expr {
                    self.kind(filter)?;
                }
                self.statements(&each.body)?;
                self.statements(&each.else_body)?;
            }
            Stmt::Set(set) => {
                let kind = self.kind(&set.expr)?;
                self.assign(&set.target, kind)?;
            }
            Stmt::SetBlock(set) if set.filter.is_none() => {
                self.statements(&set.body)?;
                self.assign(&set.target, TaintKind::Mixed)?;
            }
            Stmt::Macro(own) if own.defaults.is_empty() => {
                if !self.macros.iter().any(|name| name == own.name) {
                    self.macros.push(own.name.to_owned());
                    self.has_changed = true;
                }
                // Other uses of these names do not matter: a macro gets only plain arguments.
                own.args.iter().try_for_each(|name| self.assign(name, TaintKind::Plain))?;
                self.statements(&own.body)?;
            }
            Stmt::Do(call) => self.call(&call.call).map(drop)?,
            _ => return None,
        }
        Some(())
    }

    /// The value of a condition that is constant: the content of a message is always a string.
    fn constant(&mut self, condition: &Expr<'_>) -> Option<bool> {
        match condition {
            Expr::UnaryOp(not) if matches!(not.op, UnaryOpKind::Not) => {
                self.constant(&not.expr).map(|is| !is)
            }
            Expr::Test(test) if test.name == "string" => {
                let (of, field) = match &test.expr {
                    Expr::GetAttr(get) => (&get.expr, get.name.to_owned()),
                    Expr::GetItem(get) => (&get.expr, text_of(&get.subscript_expr)?),
                    _ => return None,
                };
                (field == "content" && self.kind(of)? == TaintKind::Message).then_some(true)
            }
            _ => None,
        }
    }

    fn assign(&mut self, target: &Expr<'_>, kind: TaintKind) -> Option<()> {
        let (known, name) = match target {
            Expr::Var(name) => (&mut self.names, name.id),
            Expr::GetAttr(get) => (&mut self.attributes, get.name),
            Expr::Tuple(names) if kind == TaintKind::Plain => {
                return names.items.iter().try_for_each(|name| self.assign(name, kind));
            }
            Expr::List(names) if kind == TaintKind::Plain => {
                return names.items.iter().try_for_each(|name| self.assign(name, kind));
            }
            _ => return None,
        };
        self.has_changed |= add_kind(known, name, kind);
        Some(())
    }

    /// The kind of an expression that is printed or concatenated.
    fn text(&mut self, expression: &Expr<'_>) -> Option<TaintKind> {
        self.kind(expression).filter(|kind| kind.is_text())
    }

    /// Requires an expression to be independent of contents.
    fn plain(&mut self, expression: &Expr<'_>) -> Option<()> {
        (self.kind(expression)? == TaintKind::Plain).then_some(())
    }

    fn kind(&mut self, expression: &Expr<'_>) -> Option<TaintKind> {
        Some(match expression {
            Expr::Const(_) => TaintKind::Plain,
            // The output depends on the time.
            Expr::Var(name) if name.id == "strftime_now" => return None,
            Expr::Var(name) => {
                let unset = if name.id == "loop" { TaintKind::Loop } else { TaintKind::Plain };
                self.names.get(name.id).copied().unwrap_or(unset)
            }
            Expr::UnaryOp(of) => match (&of.op, self.kind(&of.expr)?) {
                (UnaryOpKind::Not, _) | (_, TaintKind::Plain) => TaintKind::Plain,
                _ => return None,
            },
            Expr::BinOp(of) => self.binary(of.op, &of.left, &of.right)?,
            Expr::Compare(chain) => {
                let mut left = &chain.expr;
                for next in &chain.ops {
                    self.compare(next.op, left, &next.expr)?;
                    left = &next.expr;
                }
                TaintKind::Plain
            }
            Expr::IfExpr(of) => {
                self.kind(&of.test_expr)?;
                let other = match &of.false_expr {
                    Some(other) => self.kind(other)?,
                    None => TaintKind::Plain,
                };
                self.kind(&of.true_expr)?.or(other)
            }
            Expr::Slice(of) => {
                let bounds = [&of.start, &of.stop, &of.step];
                bounds.into_iter().flatten().try_for_each(|bound| self.plain(bound))?;
                match self.kind(&of.expr)? {
                    kind @ (TaintKind::Plain | TaintKind::Messages) => kind,
                    _ => return None,
                }
            }
            Expr::GetAttr(of) => {
                let kind = self.kind(&of.expr)?;
                self.field(kind, of.name)?
            }
            Expr::GetItem(of) => match (self.kind(&of.expr)?, text_of(&of.subscript_expr)) {
                (kind, Some(name)) => self.field(kind, &name)?,
                (kind, None) => {
                    self.plain(&of.subscript_expr)?;
                    match kind {
                        TaintKind::Plain => TaintKind::Plain,
                        TaintKind::Messages => TaintKind::Message,
                        TaintKind::Parts => TaintKind::Content,
                        _ => return None,
                    }
                }
            },
            Expr::Filter(filter) => {
                let input = self.kind(filter.expr.as_ref()?)?;
                self.filter(filter.name, input, &filter.args)?
            }
            Expr::Test(test) => {
                // Whether a variable is defined does not depend on its value.
                if !(test.name == "defined" && matches!(test.expr, Expr::Var(_))) {
                    let kind = self.kind(&test.expr)?;
                    if kind != TaintKind::Plain && !KINDS.contains(&test.name) {
                        return None;
                    }
                }
                self.plain_arguments(&test.args)?;
                TaintKind::Plain
            }
            Expr::Call(call) => self.call(call)?,
            Expr::List(of) => self.all_plain(&of.items)?,
            Expr::Tuple(of) => self.all_plain(&of.items)?,
            Expr::Map(of) => {
                self.all_plain(&of.keys)?;
                self.all_plain(&of.values)?
            }
        })
    }

    fn all_plain(&mut self, items: &[Expr<'_>]) -> Option<TaintKind> {
        items.iter().try_for_each(|item| self.plain(item))?;
        Some(TaintKind::Plain)
    }

    fn plain_arguments(&mut self, arguments: &[CallArg<'_>]) -> Option<()> {
        arguments.iter().try_for_each(|argument| match argument {
            CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.plain(value),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => None,
        })
    }

    /// The kind of a value's field.
    fn field(&self, kind: TaintKind, name: &str) -> Option<TaintKind> {
        match kind {
            TaintKind::Message if name == "content" => Some(TaintKind::Content),
            // Cached conversations have messages with only a role and a content.
            TaintKind::Message => Some(TaintKind::Plain),
            TaintKind::Loop if matches!(name, "previtem" | "nextitem") => Some(TaintKind::Anything),
            TaintKind::Loop | TaintKind::Plain => Some(TaintKind::Plain),
            TaintKind::Namespace => {
                Some(self.attributes.get(name).copied().unwrap_or(TaintKind::Plain))
            }
            _ => None,
        }
    }

    fn binary(&mut self, op: BinOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Option<TaintKind> {
        let compared = match op {
            BinOpKind::Add | BinOpKind::Concat => {
                return match (self.text(left)?, self.text(right)?) {
                    (TaintKind::Plain, TaintKind::Plain) => Some(TaintKind::Plain),
                    _ => Some(TaintKind::Mixed),
                };
            }
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                return Some(self.kind(left)?.or(self.kind(right)?));
            }
            BinOpKind::Eq => CompareOpKind::Eq,
            BinOpKind::Ne => CompareOpKind::Ne,
            BinOpKind::In => CompareOpKind::In,
            _ => {
                self.plain(left)?;
                self.plain(right)?;
                return Some(TaintKind::Plain);
            }
        };
        self.compare(compared, left, right)?;
        Some(TaintKind::Plain)
    }

    fn compare(&mut self, op: CompareOpKind, left: &Expr<'_>, right: &Expr<'_>) -> Option<()> {
        let kinds = (self.kind(left)?, self.kind(right)?);
        if kinds == (TaintKind::Plain, TaintKind::Plain) {
            return Some(());
        }
        match (op, kinds) {
            // By the conditions, contents are longer than any text they are compared with.
            (CompareOpKind::Eq | CompareOpKind::Ne, (one, TaintKind::Plain)) if one.is_text() => {
                self.require_longer_than(&right.as_const()?)
            }
            (CompareOpKind::Eq | CompareOpKind::Ne, (TaintKind::Plain, other))
                if other.is_text() =>
            {
                self.require_longer_than(&left.as_const()?)
            }
            (CompareOpKind::In | CompareOpKind::NotIn, (one, TaintKind::Plain))
                if one.is_text() =>
            {
                self.require_longer_than(&right.as_const()?)
            }
            (CompareOpKind::In | CompareOpKind::NotIn, (TaintKind::Plain, TaintKind::Content)) => {
                self.forbid_part(&text_of(left)?);
                Some(())
            }
            (CompareOpKind::In | CompareOpKind::NotIn, (TaintKind::Plain, TaintKind::Message)) => {
                text_of(left).map(drop)
            }
            _ => None,
        }
    }

    /// Requires contents to be longer than a text, or than each text of a list.
    fn require_longer_than(&mut self, value: &Jinja) -> Option<()> {
        match value.as_str() {
            Some(text) => self.conditions.longest = self.conditions.longest.max(text.len()),
            None if value.is_none() || value.is_number() || value.len().is_none() => {}
            None => {
                let items: Vec<_> = value.try_iter().ok()?.collect();
                items.iter().try_for_each(|item| self.require_longer_than(item))?;
            }
        }
        Some(())
    }

    fn forbid_part(&mut self, text: &str) {
        if !self.conditions.parts.iter().any(|known| known == text) {
            self.conditions.parts.push(text.to_owned());
        }
    }

    /// Forbids contents that stripping would change.
    fn forbid_stripped(&mut self, characters: Option<&str>) {
        match characters {
            None => self.conditions.strips_space = true,
            Some(characters) => self.conditions.stripped.extend(characters.chars()),
        }
    }

    fn filter(
        &mut self,
        name: &str,
        input: TaintKind,
        arguments: &[CallArg<'_>],
    ) -> Option<TaintKind> {
        let texts = texts_of(arguments);
        match (name, input, texts.as_deref()) {
            ("default" | "d", _, _) => {
                let [CallArg::Pos(other)] = arguments else { return None };
                return Some(input.or(self.kind(other)?));
            }
            ("string", TaintKind::Content | TaintKind::Mixed, Some([])) => return Some(input),
            ("trim", TaintKind::Content, Some(texts @ ([] | [_]))) => {
                self.forbid_stripped(texts.first().map(String::as_str));
                return Some(TaintKind::Content);
            }
            ("replace", TaintKind::Content, Some([text, _])) => {
                self.forbid_part(text);
                return Some(TaintKind::Content);
            }
            ("first" | "last", TaintKind::Messages, Some([])) => return Some(TaintKind::Message),
            ("first" | "last", TaintKind::Parts, Some([])) => return Some(TaintKind::Content),
            ("length" | "count", TaintKind::Messages, Some([])) => return Some(TaintKind::Plain),
            ("list" | "reverse", TaintKind::Messages, Some([])) => {
                return Some(TaintKind::Messages);
            }
            ("selectattr" | "rejectattr", TaintKind::Messages, Some([field, ..]))
                if field == "role" =>
            {
                return Some(TaintKind::Messages);
            }
            (_, TaintKind::Plain, _) => {}
            _ => return None,
        }
        self.plain_arguments(arguments)?;
        Some(TaintKind::Plain)
    }

    fn call(&mut self, call: &Call<'_>) -> Option<TaintKind> {
        match call.identify_call() {
            // A macro or a variable may shadow any function.
            CallType::Function(name) if self.macros.iter().any(|known| known == name) => {
                self.plain_arguments(&call.args)?;
                Some(TaintKind::Mixed)
            }
            CallType::Function(name) if self.names.contains_key(name) => None,
            CallType::Function("namespace") => {
                for argument in &call.args {
                    let CallArg::Kwarg(name, value) = argument else { return None };
                    let kind = self.kind(value)?;
                    self.has_changed |= add_kind(&mut self.attributes, name, kind);
                }
                Some(TaintKind::Namespace)
            }
            // Nothing is rendered then.
            CallType::Function("raise_exception") => Some(TaintKind::Plain),
            CallType::Function("range" | "dict") => {
                self.plain_arguments(&call.args)?;
                Some(TaintKind::Plain)
            }
            CallType::Method(of, name) => {
                let kind = self.kind(of)?;
                self.method(kind, name, &call.args)
            }
            _ => None,
        }
    }

    fn method(
        &mut self,
        kind: TaintKind,
        name: &str,
        arguments: &[CallArg<'_>],
    ) -> Option<TaintKind> {
        let texts = texts_of(arguments);
        match (kind, name, texts.as_deref()) {
            (TaintKind::Plain | TaintKind::Loop, _, _) => {
                self.plain_arguments(arguments)?;
                Some(TaintKind::Plain)
            }
            (TaintKind::Message, "get", _) => {
                let (CallArg::Pos(field), others) = arguments.split_first()? else { return None };
                self.plain_arguments(others)?;
                self.field(kind, &text_of(field)?).map(|kind| kind.or(TaintKind::Plain))
            }
            (TaintKind::Content, "startswith" | "removeprefix", Some([text])) => {
                self.conditions.beginnings.push(text.clone());
                Some(if name == "startswith" { TaintKind::Plain } else { TaintKind::Content })
            }
            (TaintKind::Content, "endswith" | "removesuffix", Some([text])) => {
                self.conditions.endings.push(text.clone());
                Some(if name == "endswith" { TaintKind::Plain } else { TaintKind::Content })
            }
            (TaintKind::Content, "strip" | "lstrip" | "rstrip", Some(texts @ ([] | [_]))) => {
                self.forbid_stripped(texts.first().map(String::as_str));
                Some(TaintKind::Content)
            }
            (TaintKind::Content, "replace", Some([text, _])) => {
                self.forbid_part(text);
                Some(TaintKind::Content)
            }
            (TaintKind::Content, "split" | "rsplit", Some([text])) => {
                self.forbid_part(text);
                Some(TaintKind::Parts)
            }
            _ => None,
        }
    }
}

/// Adds a kind to those that a name may have; returns whether the result changed.
fn add_kind(known: &mut HashMap<String, TaintKind>, name: &str, kind: TaintKind) -> bool {
    let before = known.get(name).copied();
    let both = before.map_or(kind, |before| before.or(kind));
    known.insert(name.to_owned(), both);
    before != Some(both)
}

/// Tests for the type of a value, which is the same for all contents.
const KINDS: [&str; 11] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "boolean",
    "number",
    "integer",
    "float",
];

/// A string literal of the template.
fn text_of(expression: &Expr<'_>) -> Option<String> {
    expression.as_const()?.as_str().map(str::to_owned)
}

fn texts_of(arguments: &[CallArg<'_>]) -> Option<Vec<String>> {
    let text = |argument: &CallArg<'_>| match argument {
        CallArg::Pos(value) => text_of(value),
        _ => None,
    };
    arguments.iter().map(text).collect()
}
