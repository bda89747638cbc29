//! Type checker: from a syntax tree to a program in which every name is resolved and every type
//! fits.

use wornpath_yaml::nearest;

use super::parse::{CelError, CelPart, CelProblem, Syntax, error, parse};
use super::program::{Binary, CelNumber, CelText, Program, TextTest};
use super::{Type, Vocabulary};

/// Parses and type-checks an expression whose value is a number.
///
/// # Errors
/// The first problem, with its line and column.
pub(crate) fn compile_number<V: Vocabulary>(
    text: &str,
    vocabulary: &V,
) -> Result<Program<V::Field>, CelError> {
    let syntax = parse(text)?;
    match (Checker { text, vocabulary }).check(&syntax)? {
        Typed::Int(number) | Typed::Double(number) => Ok(Program(number)),
        other => {
            let wanted = "a score must be a number; write `condition ? 1.0 : 0.0`";
            let problem = CelProblem::Result { found: other.kind(), wanted };
            Err(error(text, syntax.at, problem))
        }
    }
}

/// Parses and type-checks an expression whose value is true or false.
///
/// # Errors
/// The first problem, with its line and column.
pub(crate) fn compile_rule<V: Vocabulary>(
    text: &str,
    vocabulary: &V,
) -> Result<Program<V::Field>, CelError> {
    let syntax = parse(text)?;
    match (Checker { text, vocabulary }).check(&syntax)? {
        Typed::Bool(rule) => Ok(Program(rule)),
        other => {
            let wanted = "a rule must be a bool; write a comparison such as `pod.requests < 8`";
            let problem = CelProblem::Result { found: other.kind(), wanted };
            Err(error(text, syntax.at, problem))
        }
    }
}

/// A node of the program and its type.
enum Typed<F> {
    Int(CelNumber<F>),
    Double(CelNumber<F>),
    Bool(CelNumber<F>),
    Text(CelText<F>),
}

/// Two operands of one type. An int beside a double counts as a double.
enum OperandPair<F> {
    Ints(Box<[CelNumber<F>; 2]>),
    Doubles(Box<[CelNumber<F>; 2]>),
    Bools(Box<[CelNumber<F>; 2]>),
    Texts(Box<[CelText<F>; 2]>),
}

impl<F> Typed<F> {
    fn kind(&self) -> Type {
        match self {
            Self::Int(_) => Type::Int,
            Self::Double(_) => Type::Double,
            Self::Bool(_) => Type::Bool,
            Self::Text(_) => Type::String,
        }
    }

    fn with(self, other: Self) -> Result<OperandPair<F>, (Type, Type)> {
        Ok(match (self, other) {
            (Self::Int(left), Self::Int(right)) => OperandPair::Ints(Box::new([left, right])),
            (Self::Int(left) | Self::Double(left), Self::Int(right) | Self::Double(right)) => {
                OperandPair::Doubles(Box::new([left, right]))
            }
            (Self::Bool(left), Self::Bool(right)) => OperandPair::Bools(Box::new([left, right])),
            (Self::Text(left), Self::Text(right)) => OperandPair::Texts(Box::new([left, right])),
            (left, right) => return Err((left.kind(), right.kind())),
        })
    }
}

struct Checker<'a, V> {
    text: &'a str,
    vocabulary: &'a V,
}

type Checked<F> = Result<Typed<F>, CelError>;

/// An operator or function of two numbers, its operation on ints, and the one on doubles if it has
/// one.
type Arithmetic = (&'static str, Binary, Option<Binary>);

/// A comparison operator, its operation on numbers and bools, and the one on strings.
type Comparison = (&'static str, Binary, TextTest);

const ARITHMETIC: [Arithmetic; 7] = [
    ("+", Binary::IntAdd, Some(Binary::Add)),
    ("-", Binary::IntSubtract, Some(Binary::Subtract)),
    ("*", Binary::IntMultiply, Some(Binary::Multiply)),
    ("/", Binary::IntDivide, Some(Binary::Divide)),
    ("%", Binary::IntRemainder, None),
    ("min", Binary::Min, Some(Binary::Min)),
    ("max", Binary::Max, Some(Binary::Max)),
];

const COMPARISONS: [Comparison; 6] = [
    ("<", Binary::Less, TextTest::Less),
    ("<=", Binary::LessOrEqual, TextTest::LessOrEqual),
    (">", Binary::Greater, TextTest::Greater),
    (">=", Binary::GreaterOrEqual, TextTest::GreaterOrEqual),
    ("==", Binary::Equal, TextTest::Equal),
    ("!=", Binary::Unequal, TextTest::Unequal),
];

impl<V: Vocabulary> Checker<'_, V> {
    fn check(&self, syntax: &Syntax) -> Checked<V::Field> {
        let at = syntax.at;
        match &syntax.part {
            CelPart::Int(value) => Ok(Typed::Int(CelNumber::Literal(*value as f64))),
            CelPart::Double(value) => Ok(Typed::Double(CelNumber::Literal(*value))),
            CelPart::Bool(value) => {
                Ok(Typed::Bool(CelNumber::Literal(f64::from(u8::from(*value)))))
            }
            CelPart::Text(text) => Ok(Typed::Text(CelText::Literal(text.as_str().into()))),
            CelPart::List(_) => Err(self.error(at, CelProblem::List)),
            CelPart::Path(path) => Ok(match self.field(at, path)? {
                (field, Type::Int) => Typed::Int(CelNumber::Field(field)),
                (field, Type::Double) => Typed::Double(CelNumber::Field(field)),
                (field, Type::Bool) => Typed::Bool(CelNumber::Field(field)),
                (field, Type::String) => Typed::Text(CelText::Field(field)),
            }),
            CelPart::Call { name, method: false, arguments } => self.function(at, name, arguments),
            CelPart::Call { name, method: true, arguments } => self.method(at, name, arguments),
            CelPart::Not(operand) => {
                Ok(Typed::Bool(CelNumber::Not(Box::new(self.bool_operand("!", operand)?))))
            }
            CelPart::Negate(operand) => match self.check(operand)? {
                Typed::Int(int) => {
                    let from_zero = Box::new([CelNumber::Literal(0.0), int]);
                    Ok(Typed::Int(CelNumber::Binary(Binary::IntSubtract, from_zero)))
                }
                Typed::Double(double) => Ok(Typed::Double(CelNumber::Negate(Box::new(double)))),
                other => Err(self.operands(at, "-", other.kind().to_string(), "a number")),
            },
            CelPart::Binary(operator, pair) => self.binary(at, operator, pair),
            CelPart::Choose(parts) => self.choose(at, parts),
        }
    }

    fn binary(&self, at: usize, operator: &'static str, pair: &[Syntax; 2]) -> Checked<V::Field> {
        let [left, right] = pair;
        if operator == "in" {
            return self.membership(at, left, right);
        }
        if let "&&" | "||" = operator {
            let logic = if operator == "&&" { Binary::And } else { Binary::Or };
            let both = [self.bool_operand(operator, left)?, self.bool_operand(operator, right)?];
            return Ok(Typed::Bool(CelNumber::Binary(logic, Box::new(both))));
        }
        match COMPARISONS.iter().find(|(known, ..)| *known == operator) {
            Some((_, numbers, texts)) => {
                Ok(Typed::Bool(match self.operand_pair(at, operator, pair)? {
                    OperandPair::Ints(pair)
                    | OperandPair::Doubles(pair)
                    | OperandPair::Bools(pair) => CelNumber::Binary(*numbers, pair),
                    OperandPair::Texts(pair) => CelNumber::Texts(*texts, pair),
                }))
            }
            None => self.arithmetic(at, operator, pair),
        }
    }

    fn arithmetic(&self, at: usize, name: &str, pair: &[Syntax; 2]) -> Checked<V::Field> {
        let Some((name, ints, doubles)) = ARITHMETIC.iter().find(|(known, ..)| *known == name)
        else {
            return Err(self.error(at, CelProblem::UnknownFunction { name: name.to_owned() }));
        };
        match (self.operand_pair(at, name, pair)?, doubles) {
            (OperandPair::Ints(pair), _) => Ok(Typed::Int(CelNumber::Binary(*ints, pair))),
            (OperandPair::Doubles(pair), Some(doubles)) => {
                Ok(Typed::Double(CelNumber::Binary(*doubles, pair)))
            }
            (OperandPair::Doubles(_), None) => {
                Err(self.operands(at, name, "double".to_owned(), "two ints"))
            }
            (OperandPair::Bools(_), _) => {
                Err(self.operands(at, name, "bool".to_owned(), "two numbers"))
            }
            (OperandPair::Texts(_), _) => {
                Err(self.operands(at, name, "string".to_owned(), "two numbers"))
            }
        }
    }

    fn choose(&self, at: usize, [condition, yes, no]: &[Syntax; 3]) -> Checked<V::Field> {
        let condition = self.bool_operand("? :", condition)?;
        let yes = self.check(yes)?;
        let no = self.check(no)?;
        let pair = yes.with(no).map_err(|(yes, no)| self.mismatch(at, "? :", yes, no))?;
        let chosen =
            |[yes, no]: [CelNumber<V::Field>; 2]| CelNumber::Choose(Box::new([condition, yes, no]));
        match pair {
            OperandPair::Ints(pair) => Ok(Typed::Int(chosen(*pair))),
            OperandPair::Doubles(pair) => Ok(Typed::Double(chosen(*pair))),
            OperandPair::Bools(pair) => Ok(Typed::Bool(chosen(*pair))),
            OperandPair::Texts(_) => Err(self.operands(
                at,
                "? :",
                "string".to_owned(),
                "numbers or bools to choose from",
            )),
        }
    }

    fn membership(&self, at: usize, value: &Syntax, list: &Syntax) -> Checked<V::Field> {
        let CelPart::List(items) = &list.part else {
            return Err(self.error(list.at, CelProblem::List));
        };
        let misfit = |item: &Syntax| self.error(item.at, CelProblem::List);
        let number = |item: &Syntax| literal_number(item).ok_or_else(|| misfit(item));
        let text = |item: &Syntax| literal_text(item).ok_or_else(|| misfit(item));
        Ok(Typed::Bool(match self.check(value)? {
            Typed::Int(value) | Typed::Double(value) => {
                let list: Result<_, _> = items.iter().map(number).collect();
                CelNumber::In(Box::new(value), list?)
            }
            Typed::Text(value) => {
                let list: Result<_, _> = items.iter().map(text).collect();
                CelNumber::InTexts(value, list?)
            }
            Typed::Bool(_) => {
                return Err(self.operands(at, "in", "bool".to_owned(), "a number or a string"));
            }
        }))
    }

    fn function(&self, at: usize, name: &str, arguments: &[Syntax]) -> Checked<V::Field> {
        match (name, arguments) {
            ("min" | "max", [left, right]) => {
                self.arithmetic(at, name, &[left.clone(), right.clone()])
            }
            ("int", [number]) => match self.check(number)? {
                Typed::Double(double) => Ok(Typed::Int(CelNumber::Truncate(Box::new(double)))),
                int @ Typed::Int(_) => Ok(int),
                _ => Err(self.arguments(at, name, "one number")),
            },
            ("double", [number]) => match self.check(number)? {
                Typed::Int(number) | Typed::Double(number) => Ok(Typed::Double(number)),
                _ => Err(self.arguments(at, name, "one number")),
            },
            ("has", [Syntax { at, part: CelPart::Path(path) }]) => match self.field(*at, path)? {
                (field, Type::String) => Ok(Typed::Bool(CelNumber::Has(field))),
                _ => Ok(Typed::Bool(CelNumber::Literal(1.0))),
            },
            ("min" | "max", _) => Err(self.arguments(at, name, "two numbers")),
            ("int" | "double", _) => Err(self.arguments(at, name, "one number")),
            ("has", _) => Err(self.arguments(at, name, "one field")),
            _ => Err(self.error(at, CelProblem::UnknownFunction { name: name.to_owned() })),
        }
    }

    /// A method call; the receiver is the first argument.
    fn method(&self, at: usize, name: &str, arguments: &[Syntax]) -> Checked<V::Field> {
        let test = match name {
            "size" => {
                let [text] = arguments else { return Err(self.arguments(at, name, "nothing")) };
                let Typed::Text(text) = self.check(text)? else {
                    return Err(self.arguments(at, name, "a string before the dot"));
                };
                return Ok(Typed::Int(CelNumber::Size(text)));
            }
            "contains" => TextTest::Contains,
            "startsWith" => TextTest::StartsWith,
            "endsWith" => TextTest::EndsWith,
            _ => return Err(self.error(at, CelProblem::UnknownFunction { name: name.to_owned() })),
        };
        let takes = "a string before the dot and one in the parentheses";
        let [text, part] = arguments else { return Err(self.arguments(at, name, takes)) };
        match (self.check(text)?, self.check(part)?) {
            (Typed::Text(text), Typed::Text(part)) => {
                Ok(Typed::Bool(CelNumber::Texts(test, Box::new([text, part]))))
            }
            _ => Err(self.arguments(at, name, takes)),
        }
    }

    fn field(&self, at: usize, path: &[String]) -> Result<(V::Field, Type), CelError> {
        let parts: Vec<_> = path.iter().map(String::as_str).collect();
        self.vocabulary.resolve(&parts).ok_or_else(|| {
            let path = path.join(".");
            let known = self.vocabulary.known();
            let close = nearest(&path, known.iter().map(String::as_str));
            let suggestion = match (self.vocabulary.renamed(&parts), close) {
                (Some(now), _) => format!("; it is called `{now}` now"),
                (None, Some(close)) => format!("; did you mean `{close}`?"),
                (None, None) => format!("; available: {}", known.join(", ")),
            };
            self.error(at, CelProblem::UnknownField { path, suggestion })
        })
    }

    fn bool_operand(
        &self,
        operator: &'static str,
        syntax: &Syntax,
    ) -> Result<CelNumber<V::Field>, CelError> {
        match self.check(syntax)? {
            Typed::Bool(operand) => Ok(operand),
            other => Err(self.operands(syntax.at, operator, other.kind().to_string(), "a bool")),
        }
    }

    fn operand_pair(
        &self,
        at: usize,
        operator: &'static str,
        [left, right]: &[Syntax; 2],
    ) -> Result<OperandPair<V::Field>, CelError> {
        let left = self.check(left)?;
        let right = self.check(right)?;
        left.with(right).map_err(|(left, right)| self.mismatch(at, operator, left, right))
    }

    fn mismatch(&self, at: usize, operator: &'static str, left: Type, right: Type) -> CelError {
        self.operands(at, operator, format!("{left} and {right}"), "operands of one type")
    }

    fn operands(
        &self,
        at: usize,
        operator: &'static str,
        operands: String,
        takes: &'static str,
    ) -> CelError {
        self.error(at, CelProblem::Operands { operator, operands, takes })
    }

    fn arguments(&self, at: usize, name: &str, takes: &'static str) -> CelError {
        self.error(at, CelProblem::Arguments { name: name.to_owned(), takes })
    }

    fn error(&self, at: usize, problem: CelProblem) -> CelError {
        error(self.text, at, problem)
    }
}

fn literal_number(syntax: &Syntax) -> Option<f64> {
    match syntax.part {
        CelPart::Int(value) => Some(value as f64),
        CelPart::Double(value) => Some(value),
        _ => None,
    }
}

fn literal_text(syntax: &Syntax) -> Option<Box<str>> {
    if let CelPart::Text(text) = &syntax.part { Some(text.as_str().into()) } else { None }
}
