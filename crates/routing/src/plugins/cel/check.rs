//! From syntax to a program: every name is resolved, every operand has a type that fits.

use wornpath_yaml::nearest;

use super::parse::{CelError, CelPart, CelProblem, Syntax, error, parse};
use super::program::{Binary, CelNumber, CelText, Program, TextTest};
use super::{Type, Vocabulary};

/// Parses and types an expression whose value is a number.
///
/// # Errors
/// Says what is wrong, at which line and column.
pub(crate) fn compile<V: Vocabulary>(
    text: &str,
    vocabulary: &V,
) -> Result<Program<V::Field>, CelError> {
    let syntax = parse(text)?;
    let checker = Checker { text, vocabulary };
    match checker.check(&syntax)? {
        Typed::Int(number) | Typed::Double(number) => Ok(Program(number)),
        other => {
            let wanted = "a score is a number; choose one with `condition ? 1.0 : 0.0`";
            let problem = CelProblem::Result { found: other.kind(), wanted };
            Err(error(text, syntax.at, problem))
        }
    }
}

/// A part of the program and its type.
enum Typed<F> {
    Int(CelNumber<F>),
    Double(CelNumber<F>),
    Truth(CelNumber<F>),
    Text(CelText<F>),
}

/// Two operands of one type. An int beside a double is one: they are kept alike.
enum Both<F> {
    Ints(Box<[CelNumber<F>; 2]>),
    Doubles(Box<[CelNumber<F>; 2]>),
    Truths(Box<[CelNumber<F>; 2]>),
    Texts(Box<[CelText<F>; 2]>),
}

impl<F> Typed<F> {
    fn kind(&self) -> Type {
        match self {
            Self::Int(_) => Type::Int,
            Self::Double(_) => Type::Double,
            Self::Truth(_) => Type::Bool,
            Self::Text(_) => Type::String,
        }
    }

    fn with(self, other: Self) -> Result<Both<F>, (Type, Type)> {
        Ok(match (self, other) {
            (Self::Int(left), Self::Int(right)) => Both::Ints(Box::new([left, right])),
            (Self::Int(left) | Self::Double(left), Self::Int(right) | Self::Double(right)) => {
                Both::Doubles(Box::new([left, right]))
            }
            (Self::Truth(left), Self::Truth(right)) => Both::Truths(Box::new([left, right])),
            (Self::Text(left), Self::Text(right)) => Both::Texts(Box::new([left, right])),
            (left, right) => return Err((left.kind(), right.kind())),
        })
    }
}

struct Checker<'a, V> {
    text: &'a str,
    vocabulary: &'a V,
}

type Checked<F> = Result<Typed<F>, CelError>;

/// An operator or function of two numbers: what it does to ints, and to doubles if it takes them.
type Arithmetic = (&'static str, Binary, Option<Binary>);

/// What a comparison does to numbers and truths, and to texts.
type Comparison = (&'static str, Binary, TextTest);

const ARITHMETIC: [Arithmetic; 7] = [
    ("+", Binary::IntAdd, Some(Binary::Add)),
    ("-", Binary::IntSubtract, Some(Binary::Subtract)),
    ("*", Binary::IntMultiply, Some(Binary::Multiply)),
    ("/", Binary::IntDivide, Some(Binary::Divide)),
    ("%", Binary::IntRemainder, None),
    ("min", Binary::Least, Some(Binary::Least)),
    ("max", Binary::Greatest, Some(Binary::Greatest)),
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
                Ok(Typed::Truth(CelNumber::Literal(f64::from(u8::from(*value)))))
            }
            CelPart::Text(text) => Ok(Typed::Text(CelText::Literal(text.as_str().into()))),
            CelPart::List(_) => Err(self.error(at, CelProblem::List)),
            CelPart::Path(path) => Ok(match self.field(at, path)? {
                (field, Type::Int) => Typed::Int(CelNumber::Field(field)),
                (field, Type::Double) => Typed::Double(CelNumber::Field(field)),
                (field, Type::Bool) => Typed::Truth(CelNumber::Field(field)),
                (field, Type::String) => Typed::Text(CelText::Field(field)),
            }),
            CelPart::Call { name, method: false, arguments } => self.function(at, name, arguments),
            CelPart::Call { name, method: true, arguments } => self.method(at, name, arguments),
            CelPart::Not(operand) => {
                Ok(Typed::Truth(CelNumber::Not(Box::new(self.truth("!", operand)?))))
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
            return self.among(at, left, right);
        }
        if let "&&" | "||" = operator {
            let logic = if operator == "&&" { Binary::And } else { Binary::Or };
            let both = [self.truth(operator, left)?, self.truth(operator, right)?];
            return Ok(Typed::Truth(CelNumber::Binary(logic, Box::new(both))));
        }
        match COMPARISONS.iter().find(|(known, ..)| *known == operator) {
            Some((_, numbers, texts)) => Ok(Typed::Truth(match self.both(at, operator, pair)? {
                Both::Ints(pair) | Both::Doubles(pair) | Both::Truths(pair) => {
                    CelNumber::Binary(*numbers, pair)
                }
                Both::Texts(pair) => CelNumber::Texts(*texts, pair),
            })),
            None => self.arithmetic(at, operator, pair),
        }
    }

    fn arithmetic(&self, at: usize, name: &str, pair: &[Syntax; 2]) -> Checked<V::Field> {
        let Some((name, ints, doubles)) = ARITHMETIC.iter().find(|(known, ..)| *known == name)
        else {
            return Err(self.error(at, CelProblem::UnknownFunction { name: name.to_owned() }));
        };
        match (self.both(at, name, pair)?, doubles) {
            (Both::Ints(pair), _) => Ok(Typed::Int(CelNumber::Binary(*ints, pair))),
            (Both::Doubles(pair), Some(doubles)) => {
                Ok(Typed::Double(CelNumber::Binary(*doubles, pair)))
            }
            (Both::Doubles(_), None) => {
                Err(self.operands(at, name, "double".to_owned(), "two ints"))
            }
            (Both::Truths(_), _) => Err(self.operands(at, name, "bool".to_owned(), "two numbers")),
            (Both::Texts(_), _) => Err(self.operands(at, name, "string".to_owned(), "two numbers")),
        }
    }

    fn choose(&self, at: usize, [condition, yes, no]: &[Syntax; 3]) -> Checked<V::Field> {
        let condition = self.truth("? :", condition)?;
        let (yes, no) = (self.check(yes)?, self.check(no)?);
        let both = yes.with(no).map_err(|(yes, no)| self.mismatch(at, "? :", yes, no))?;
        let chosen =
            |[yes, no]: [CelNumber<V::Field>; 2]| CelNumber::Choose(Box::new([condition, yes, no]));
        match both {
            Both::Ints(pair) => Ok(Typed::Int(chosen(*pair))),
            Both::Doubles(pair) => Ok(Typed::Double(chosen(*pair))),
            Both::Truths(pair) => Ok(Typed::Truth(chosen(*pair))),
            Both::Texts(_) => Err(self.operands(
                at,
                "? :",
                "string".to_owned(),
                "numbers or bools to choose from",
            )),
        }
    }

    fn among(&self, at: usize, value: &Syntax, list: &Syntax) -> Checked<V::Field> {
        let CelPart::List(items) = &list.part else {
            return Err(self.error(list.at, CelProblem::List));
        };
        let misfit = |item: &Syntax| self.error(item.at, CelProblem::List);
        let number = |item: &Syntax| literal_number(item).ok_or_else(|| misfit(item));
        let text = |item: &Syntax| literal_text(item).ok_or_else(|| misfit(item));
        Ok(Typed::Truth(match self.check(value)? {
            Typed::Int(value) | Typed::Double(value) => {
                let list: Result<_, _> = items.iter().map(number).collect();
                CelNumber::Among(Box::new(value), list?)
            }
            Typed::Text(value) => {
                let list: Result<_, _> = items.iter().map(text).collect();
                CelNumber::AmongTexts(value, list?)
            }
            Typed::Truth(_) => {
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
                (field, Type::String) => Ok(Typed::Truth(CelNumber::Has(field))),
                _ => Ok(Typed::Truth(CelNumber::Literal(1.0))),
            },
            ("min" | "max", _) => Err(self.arguments(at, name, "two numbers")),
            ("int" | "double", _) => Err(self.arguments(at, name, "one number")),
            ("has", _) => Err(self.arguments(at, name, "one field")),
            _ => Err(self.error(at, CelProblem::UnknownFunction { name: name.to_owned() })),
        }
    }

    /// The receiver is the first argument.
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
                Ok(Typed::Truth(CelNumber::Texts(test, Box::new([text, part]))))
            }
            _ => Err(self.arguments(at, name, takes)),
        }
    }

    fn field(&self, at: usize, path: &[String]) -> Result<(V::Field, Type), CelError> {
        let parts: Vec<_> = path.iter().map(String::as_str).collect();
        self.vocabulary.resolve(&parts).ok_or_else(|| {
            let path = path.join(".");
            let known = self.vocabulary.known();
            let suggestion = match nearest(&path, known.iter().map(String::as_str)) {
                Some(close) => format!("; did you mean `{close}`?"),
                None => format!("; the fields are {}", known.join(", ")),
            };
            self.error(at, CelProblem::UnknownField { path, suggestion })
        })
    }

    fn truth(
        &self,
        operator: &'static str,
        syntax: &Syntax,
    ) -> Result<CelNumber<V::Field>, CelError> {
        match self.check(syntax)? {
            Typed::Truth(truth) => Ok(truth),
            other => Err(self.operands(syntax.at, operator, other.kind().to_string(), "a bool")),
        }
    }

    fn both(
        &self,
        at: usize,
        operator: &'static str,
        [left, right]: &[Syntax; 2],
    ) -> Result<Both<V::Field>, CelError> {
        let (left, right) = (self.check(left)?, self.check(right)?);
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
