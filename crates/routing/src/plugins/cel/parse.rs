//! Parser: from text to a syntax tree in which every node knows its position.
//!
//! Recursive descent with precedence levels. Depth and the number of operators are limited, because
//! the checker and the evaluation recurse into the tree.

use std::fmt;

use super::Type;
use super::program::LARGEST_INT;

/// An expression that does not compile, and where.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub(crate) struct CelError {
    /// Counted from one.
    pub(crate) line: usize,
    /// Counted from one, in characters.
    pub(crate) column: usize,
    pub(crate) problem: CelProblem,
}

/// What the parser or the checker found.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub(crate) enum CelProblem {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: &'static str, found: String },
    #[error("unterminated string; close it with {quote}")]
    OpenString { quote: char },
    #[error("unknown escape `\\{0}`; use one of \\\\ \\\" \\' \\n \\t")]
    Escape(char),
    #[error("number {0} is out of range; ints have 53 bits and doubles are finite")]
    Number(String),
    #[error("nested deeper than {MAX_DEPTH} levels; split it into several expressions")]
    TooDeep,
    #[error("more than {MAX_OPERATORS} operators; split it into several expressions")]
    TooLong,
    #[error("unknown field `{path}`{suggestion}")]
    UnknownField { path: String, suggestion: String },
    #[error("unknown function `{name}`; available: {}", super::FUNCTIONS.join(", "))]
    UnknownFunction { name: String },
    #[error("`{name}` takes {takes}")]
    Arguments { name: String, takes: &'static str },
    #[error("`{operator}` cannot take {operands}; it takes {takes}")]
    Operands { operator: &'static str, operands: String, takes: &'static str },
    #[error("the expression has type {found}, but {wanted}")]
    Result { found: Type, wanted: &'static str },
    #[error("a list is allowed only after `in`, with literals of one type")]
    List,
}

const MAX_DEPTH: usize = 64;
/// A chain of operators is a tree as deep as the chain is long.
const MAX_OPERATORS: usize = 256;

/// A node of the syntax tree, and the byte at which it starts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Syntax {
    pub(super) at: usize,
    pub(super) part: CelPart,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum CelPart {
    Int(i64),
    Double(f64),
    Bool(bool),
    Text(String),
    List(Vec<Syntax>),
    /// A name, and the names after its dots.
    Path(Vec<String>),
    /// A function, or a method with its receiver as first argument.
    Call {
        name: String,
        method: bool,
        arguments: Vec<Syntax>,
    },
    Not(Box<Syntax>),
    Negate(Box<Syntax>),
    Binary(&'static str, Box<[Syntax; 2]>),
    Choose(Box<[Syntax; 3]>),
}

#[derive(Clone, PartialEq, Debug)]
enum CelToken {
    Int(String),
    Double(String),
    Text(String),
    Identifier(String),
    Symbol(&'static str),
    End,
}

impl fmt::Display for CelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(text) | Self::Double(text) | Self::Identifier(text) => write!(f, "`{text}`"),
            Self::Text(_) => f.write_str("a string"),
            Self::Symbol(symbol) => write!(f, "`{symbol}`"),
            Self::End => f.write_str("end of input"),
        }
    }
}

/// An error at byte `at` of `text`.
pub(super) fn error(text: &str, at: usize, problem: CelProblem) -> CelError {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    CelError {
        line: before.matches('\n').count() + 1,
        column: before[line_start..].chars().count() + 1,
        problem,
    }
}

pub(super) fn parse(text: &str) -> Result<Syntax, CelError> {
    let mut parser =
        CelParser { text, at: 0, token: CelToken::End, start: 0, depth: 0, operators: 0 };
    parser.advance()?;
    let syntax = parser.expression()?;
    match parser.token {
        CelToken::End => Ok(syntax),
        _ => Err(parser.unexpected("an operator or end of input")),
    }
}

struct CelParser<'a> {
    text: &'a str,
    /// The byte after the token.
    at: usize,
    token: CelToken,
    /// The byte at which the token starts.
    start: usize,
    depth: usize,
    operators: usize,
}

/// Binary operators by precedence, loosest first; all are left-associative.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<=", ">=", "<", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

impl CelParser<'_> {
    fn expression(&mut self) -> Result<Syntax, CelError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(error(self.text, self.start, CelProblem::TooDeep));
        }
        let condition = self.binary(0)?;
        let at = self.start;
        let syntax = if self.accept("?")? {
            let yes = self.binary(0)?;
            self.expect(":")?;
            let no = self.expression()?;
            Syntax { at, part: CelPart::Choose(Box::new([condition, yes, no])) }
        } else {
            condition
        };
        self.depth -= 1;
        Ok(syntax)
    }

    fn binary(&mut self, level: usize) -> Result<Syntax, CelError> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.is_at(operator)) {
            let at = self.start;
            self.count_operator()?;
            self.advance()?;
            let right = self.binary(level + 1)?;
            left = Syntax { at, part: CelPart::Binary(operator, Box::new([left, right])) };
        }
        Ok(left)
    }

    fn count_operator(&mut self) -> Result<(), CelError> {
        self.operators += 1;
        if self.operators > MAX_OPERATORS {
            return Err(error(self.text, self.start, CelProblem::TooLong));
        }
        Ok(())
    }

    fn unary(&mut self) -> Result<Syntax, CelError> {
        let at = self.start;
        let negates = self.is_at("-");
        if !negates && !self.is_at("!") {
            return self.member();
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(error(self.text, at, CelProblem::TooDeep));
        }
        self.advance()?;
        let operand = Box::new(self.unary()?);
        let part = if negates { CelPart::Negate(operand) } else { CelPart::Not(operand) };
        self.depth -= 1;
        Ok(Syntax { at, part })
    }

    fn member(&mut self) -> Result<Syntax, CelError> {
        let mut syntax = self.primary()?;
        while self.accept(".")? {
            let at = self.start;
            self.count_operator()?;
            let name = self.identifier()?;
            if self.accept("(")? {
                let mut arguments = vec![syntax];
                arguments.extend(self.list(")")?);
                syntax = Syntax { at, part: CelPart::Call { name, method: true, arguments } };
            } else if let CelPart::Path(path) = &mut syntax.part {
                path.push(name);
            } else {
                let found = format!("`.{name}`");
                let problem = CelProblem::Unexpected { expected: "an operator", found };
                return Err(error(self.text, at, problem));
            }
        }
        Ok(syntax)
    }

    fn primary(&mut self) -> Result<Syntax, CelError> {
        let at = self.start;
        let part = match self.token.clone() {
            CelToken::Int(digits) => self.int(&digits, at)?,
            CelToken::Double(digits) => match digits.parse::<f64>() {
                Ok(value) if value.is_finite() => CelPart::Double(value),
                _ => return Err(error(self.text, at, CelProblem::Number(digits))),
            },
            CelToken::Text(text) => CelPart::Text(text),
            CelToken::Identifier(word) if word == "true" => CelPart::Bool(true),
            CelToken::Identifier(word) if word == "false" => CelPart::Bool(false),
            CelToken::Identifier(_) => return self.name(at),
            CelToken::Symbol("(") => {
                self.advance()?;
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            CelToken::Symbol("[") => {
                self.advance()?;
                return Ok(Syntax { at, part: CelPart::List(self.list("]")?) });
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        Ok(Syntax { at, part })
    }

    fn name(&mut self, at: usize) -> Result<Syntax, CelError> {
        let name = self.identifier()?;
        let part = if self.accept("(")? {
            CelPart::Call { name, method: false, arguments: self.list(")")? }
        } else {
            CelPart::Path(vec![name])
        };
        Ok(Syntax { at, part })
    }

    /// Comma-separated expressions up to `close`, which is consumed.
    fn list(&mut self, close: &'static str) -> Result<Vec<Syntax>, CelError> {
        let mut items = vec![];
        while !self.accept(close)? {
            if !items.is_empty() {
                self.expect(",")?;
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn int(&self, digits: &str, at: usize) -> Result<CelPart, CelError> {
        match digits.parse::<i64>() {
            Ok(int) if int as f64 <= LARGEST_INT => Ok(CelPart::Int(int)),
            _ => Err(error(self.text, at, CelProblem::Number(digits.to_owned()))),
        }
    }

    fn identifier(&mut self) -> Result<String, CelError> {
        let CelToken::Identifier(word) = self.token.clone() else {
            return Err(self.unexpected("a name"));
        };
        self.advance()?;
        Ok(word)
    }

    fn is_at(&self, symbol: &str) -> bool {
        match &self.token {
            CelToken::Symbol(next) => *next == symbol,
            CelToken::Identifier(word) => symbol == "in" && word == "in",
            _ => false,
        }
    }

    fn accept(&mut self, symbol: &str) -> Result<bool, CelError> {
        let is_next = self.is_at(symbol);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, symbol: &'static str) -> Result<(), CelError> {
        if self.accept(symbol)? { Ok(()) } else { Err(self.unexpected(symbol)) }
    }

    fn unexpected(&self, expected: &'static str) -> CelError {
        let problem = CelProblem::Unexpected { expected, found: self.token.to_string() };
        error(self.text, self.start, problem)
    }

    /// Moves to the next token.
    fn advance(&mut self) -> Result<(), CelError> {
        const SYMBOLS: [&str; 22] = [
            "||", "&&", "<=", ">=", "==", "!=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":",
            "(", ")", "[", "]", ",", ".",
        ];
        let rest = self.text[self.at..].trim_start();
        self.start = self.text.len() - rest.len();
        let length_while = |matches: fn(char) -> bool| {
            rest.find(|character| !matches(character)).unwrap_or(rest.len())
        };
        let (token, length) = match rest.chars().next() {
            None => (CelToken::End, 0),
            Some('"' | '\'') => self.string(rest)?,
            Some('0'..='9') => number(rest),
            Some(first) if first.is_ascii_alphabetic() || first == '_' => {
                let length = length_while(|c| c.is_ascii_alphanumeric() || c == '_');
                (CelToken::Identifier(rest[..length].to_owned()), length)
            }
            Some(first) => match SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
                Some(symbol) => (CelToken::Symbol(symbol), symbol.len()),
                None => {
                    let found = format!("`{first}`");
                    let problem =
                        CelProblem::Unexpected { expected: "an operator or value", found };
                    return Err(error(self.text, self.start, problem));
                }
            },
        };
        self.token = token;
        self.at = self.start + length;
        Ok(())
    }

    fn string(&self, rest: &str) -> Result<(CelToken, usize), CelError> {
        let mut characters = rest.char_indices();
        let quote = characters.next().map_or('"', |(_, quote)| quote);
        let mut text = String::new();
        while let Some((at, character)) = characters.next() {
            match character {
                '\n' => break,
                _ if character == quote => return Ok((CelToken::Text(text), at + 1)),
                '\\' => match characters.next() {
                    Some((_, 'n')) => text.push('\n'),
                    Some((_, 't')) => text.push('\t'),
                    Some((_, escaped @ ('\\' | '"' | '\''))) => text.push(escaped),
                    Some((_, other)) => {
                        return Err(error(self.text, self.start + at, CelProblem::Escape(other)));
                    }
                    None => break,
                },
                _ => text.push(character),
            }
        }
        Err(error(self.text, self.start, CelProblem::OpenString { quote }))
    }
}

/// A number token and its length: digits, with an optional fraction and exponent.
fn number(rest: &str) -> (CelToken, usize) {
    let digits = |from: usize| {
        rest[from..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |length| from + length)
    };
    let whole = digits(0);
    let mut end = whole;
    if rest[end..].starts_with('.') && digits(end + 1) > end + 1 {
        end = digits(end + 1);
    }
    if rest[end..].starts_with(['e', 'E']) {
        let sign = usize::from(rest[end + 1..].starts_with(['+', '-']));
        let exponent = end + 1 + sign;
        end = if digits(exponent) > exponent { digits(exponent) } else { end };
    }
    let text = rest[..end].to_owned();
    (if end == whole { CelToken::Int(text) } else { CelToken::Double(text) }, end)
}
