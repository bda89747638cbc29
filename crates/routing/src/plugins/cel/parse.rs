//! From text to a tree of syntax, with the place of every part.

use std::fmt;

use super::Type;
use super::program::LARGEST_INT;

/// Why an expression is refused, and where.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub(crate) struct CelError {
    /// From one.
    pub(crate) line: usize,
    /// From one, in characters.
    pub(crate) column: usize,
    /// What is wrong there.
    pub(crate) problem: CelProblem,
}

/// What can be wrong with an expression.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub(crate) enum CelProblem {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: &'static str, found: String },
    #[error("a string starts here and does not end; close it with {quote}")]
    OpenString { quote: char },
    #[error("`\\{0}` is no escape; write one of \\\\ \\\" \\' \\n \\t")]
    Escape(char),
    #[error("{0} is out of range; ints have 53 bits and doubles are finite")]
    Number(String),
    #[error("nested deeper than {MOST_DEPTH} levels; split the rule into several scorers")]
    TooDeep,
    #[error("more than {MOST_OPERATORS} operators; split the rule into several scorers")]
    TooLong,
    #[error("there is no field `{path}`{suggestion}")]
    UnknownField { path: String, suggestion: String },
    #[error("there is no function `{name}`; the functions are {}", super::FUNCTIONS.join(", "))]
    UnknownFunction { name: String },
    #[error("`{name}` takes {takes}")]
    Arguments { name: String, takes: &'static str },
    #[error("`{operator}` cannot take {operands}; it takes {takes}")]
    Operands { operator: &'static str, operands: String, takes: &'static str },
    #[error("the expression is a {found}, but {wanted}")]
    Result { found: Type, wanted: &'static str },
    #[error("a list may stand only after `in`, and holds literals of one type")]
    List,
}

const MOST_DEPTH: usize = 64;
/// A chain of operators is a tree as deep as it is long, and evaluation recurses into it.
const MOST_OPERATORS: usize = 256;

/// A part of an expression and where it starts, in bytes.
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
    /// A name and what follows it after dots.
    Path(Vec<String>),
    /// A function, or a method with its receiver as first argument.
    Call {
        name: String,
        method: bool,
        arguments: Vec<Syntax>,
    },
    Not(Box<Syntax>),
    Negate(Box<Syntax>),
    /// An operator at its place.
    Binary(&'static str, Box<[Syntax; 2]>),
    Choose(Box<[Syntax; 3]>),
}

#[derive(Clone, PartialEq, Debug)]
enum CelToken {
    Int(String),
    Double(String),
    Text(String),
    Word(String),
    Sign(&'static str),
    End,
}

impl fmt::Display for CelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(text) | Self::Double(text) | Self::Word(text) => write!(f, "`{text}`"),
            Self::Text(_) => f.write_str("a string"),
            Self::Sign(sign) => write!(f, "`{sign}`"),
            Self::End => f.write_str("the end"),
        }
    }
}

/// Where `at` is in `text`, as an error.
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
        _ => Err(parser.unexpected("an operator or the end")),
    }
}

struct CelParser<'a> {
    text: &'a str,
    /// After the token.
    at: usize,
    token: CelToken,
    /// Where the token starts.
    start: usize,
    depth: usize,
    operators: usize,
}

/// Binary operators, loosest first; each line binds alike, from the left.
const LEVELS: [&[&str]; 5] =
    [&["||"], &["&&"], &["<=", ">=", "<", ">", "==", "!=", "in"], &["+", "-"], &["*", "/", "%"]];

impl CelParser<'_> {
    fn expression(&mut self) -> Result<Syntax, CelError> {
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(error(self.text, self.start, CelProblem::TooDeep));
        }
        let condition = self.binary(0)?;
        let at = self.start;
        let syntax = if self.take("?")? {
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
        while let Some(operator) = operators.iter().find(|operator| self.sees(operator)) {
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
        let most = self.operators <= MOST_OPERATORS;
        if most { Ok(()) } else { Err(error(self.text, self.start, CelProblem::TooLong)) }
    }

    fn unary(&mut self) -> Result<Syntax, CelError> {
        let at = self.start;
        let negates = self.sees("-");
        if !negates && !self.sees("!") {
            return self.member();
        }
        self.depth += 1;
        if self.depth > MOST_DEPTH {
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
        while self.take(".")? {
            let at = self.start;
            self.count_operator()?;
            let name = self.word()?;
            if self.take("(")? {
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
            CelToken::Word(word) if word == "true" => CelPart::Bool(true),
            CelToken::Word(word) if word == "false" => CelPart::Bool(false),
            CelToken::Word(_) => return self.name(at),
            CelToken::Sign("(") => {
                self.advance()?;
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            CelToken::Sign("[") => {
                self.advance()?;
                return Ok(Syntax { at, part: CelPart::List(self.list("]")?) });
            }
            _ => return Err(self.unexpected("a value")),
        };
        self.advance()?;
        Ok(Syntax { at, part })
    }

    fn name(&mut self, at: usize) -> Result<Syntax, CelError> {
        let name = self.word()?;
        let part = if self.take("(")? {
            CelPart::Call { name, method: false, arguments: self.list(")")? }
        } else {
            CelPart::Path(vec![name])
        };
        Ok(Syntax { at, part })
    }

    /// Expressions between commas, up to and with `close`.
    fn list(&mut self, close: &'static str) -> Result<Vec<Syntax>, CelError> {
        let mut items = vec![];
        while !self.take(close)? {
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

    fn word(&mut self) -> Result<String, CelError> {
        let CelToken::Word(word) = self.token.clone() else {
            return Err(self.unexpected("a name"));
        };
        self.advance()?;
        Ok(word)
    }

    fn sees(&self, sign: &str) -> bool {
        match &self.token {
            CelToken::Sign(seen) => *seen == sign,
            CelToken::Word(word) => sign == "in" && word == "in",
            _ => false,
        }
    }

    fn take(&mut self, sign: &str) -> Result<bool, CelError> {
        let seen = self.sees(sign);
        if seen {
            self.advance()?;
        }
        Ok(seen)
    }

    fn expect(&mut self, sign: &'static str) -> Result<(), CelError> {
        if self.take(sign)? { Ok(()) } else { Err(self.unexpected(sign)) }
    }

    fn unexpected(&self, expected: &'static str) -> CelError {
        let problem = CelProblem::Unexpected { expected, found: self.token.to_string() };
        error(self.text, self.start, problem)
    }

    /// Reads the next token.
    fn advance(&mut self) -> Result<(), CelError> {
        const SIGNS: [&str; 22] = [
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
                (CelToken::Word(rest[..length].to_owned()), length)
            }
            Some(first) => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (CelToken::Sign(sign), sign.len()),
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

/// Digits, and a fraction and an exponent if they follow.
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
