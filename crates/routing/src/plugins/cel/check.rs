//! From syntax to a typed program: every name is resolved, every operand has a type that fits.

use super::parse::{CelError, Part, Problem, Syntax, error, parse};
use super::program::{Arithmetic, Comparison, Double, Int, Program, Text, TextTest, Truth};
use super::{Type, Vocabulary};
use crate::suggest::nearest;

/// Parses and types an expression whose value is a number.
///
/// # Errors
/// Says what is wrong, at which line and column.
pub(crate) fn compile<V: Vocabulary>(
    text: &str,
    vocabulary: &V,
) -> Result<Program<V::Field>, CelError> {
    let syntax = parse(text)?;
    let at = syntax.at;
    let checker = Checker { text, vocabulary };
    match checker.check(&syntax)? {
        Typed::Int(int) => Ok(Program(Double::FromInt(Box::new(int)))),
        Typed::Double(double) => Ok(Program(double)),
        other => {
            let wanted = "a score is a number; choose one with `condition ? 1.0 : 0.0`";
            Err(error(text, at, Problem::Result { found: other.kind(), wanted }))
        }
    }
}

/// A typed tree, whatever its type.
enum Typed<F> {
    Int(Int<F>),
    Double(Double<F>),
    Truth(Truth<F>),
    Text(Text<F>),
}

/// Two operands brought to one type.
enum Both<F> {
    Ints(Int<F>, Int<F>),
    Doubles(Double<F>, Double<F>),
    Truths(Truth<F>, Truth<F>),
    Texts(Text<F>, Text<F>),
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

    /// Brings two values to one type, widening an int beside a double.
    fn with(self, other: Self) -> Result<Both<F>, (Type, Type)> {
        let widened = |int| Double::FromInt(Box::new(int));
        Ok(match (self, other) {
            (Self::Int(left), Self::Int(right)) => Both::Ints(left, right),
            (Self::Double(left), Self::Double(right)) => Both::Doubles(left, right),
            (Self::Int(left), Self::Double(right)) => Both::Doubles(widened(left), right),
            (Self::Double(left), Self::Int(right)) => Both::Doubles(left, widened(right)),
            (Self::Truth(left), Self::Truth(right)) => Both::Truths(left, right),
            (Self::Text(left), Self::Text(right)) => Both::Texts(left, right),
            (left, right) => return Err((left.kind(), right.kind())),
        })
    }
}

impl<F> Both<F> {
    fn kind(&self) -> Type {
        match self {
            Self::Ints(..) => Type::Int,
            Self::Doubles(..) => Type::Double,
            Self::Truths(..) => Type::Bool,
            Self::Texts(..) => Type::String,
        }
    }
}

struct Checker<'a, V> {
    text: &'a str,
    vocabulary: &'a V,
}

type Checked<F> = Result<Typed<F>, CelError>;

impl<V: Vocabulary> Checker<'_, V> {
    fn check(&self, syntax: &Syntax) -> Checked<V::Field> {
        let at = syntax.at;
        match &syntax.part {
            Part::Int(value) => Ok(Typed::Int(Int::Literal(*value))),
            Part::Double(value) => Ok(Typed::Double(Double::Literal(*value))),
            Part::Bool(value) => Ok(Typed::Truth(Truth::Literal(*value))),
            Part::Text(text) => Ok(Typed::Text(Text::Literal(text.as_str().into()))),
            Part::List(_) => Err(self.error(at, Problem::List)),
            Part::Path(path) => Ok(match self.field(at, path)? {
                (field, Type::Int) => Typed::Int(Int::Field(field)),
                (field, Type::Double) => Typed::Double(Double::Field(field)),
                (field, Type::Bool) => Typed::Truth(Truth::Field(field)),
                (field, Type::String) => Typed::Text(Text::Field(field)),
            }),
            Part::Call { name, method: false, arguments } => self.function(at, name, arguments),
            Part::Call { name, method: true, arguments } => self.method(at, name, arguments),
            Part::Not(operand) => {
                let operand = self.truth("!", operand)?;
                Ok(Typed::Truth(Truth::Not(Box::new(operand))))
            }
            Part::Negate(operand) => match self.check(operand)? {
                Typed::Int(int) => Ok(Typed::Int(Int::Negate(Box::new(int)))),
                Typed::Double(double) => Ok(Typed::Double(Double::Negate(Box::new(double)))),
                other => Err(self.operands(at, "-", other.kind().to_string(), "a number")),
            },
            Part::Binary(operator, pair) => self.binary(at, operator, pair),
            Part::Choose(parts) => self.choose(at, parts),
        }
    }

    fn binary(&self, at: usize, operator: &'static str, pair: &[Syntax; 2]) -> Checked<V::Field> {
        let [left, right] = pair;
        let comparison = match operator {
            "&&" | "||" => {
                let both = Box::new((self.truth(operator, left)?, self.truth(operator, right)?));
                let logic = if operator == "&&" { Truth::And } else { Truth::Or };
                return Ok(Typed::Truth(logic(both)));
            }
            "in" => return self.among(at, left, right),
            "<" => Comparison::Less,
            "<=" => Comparison::LessOrEqual,
            ">" => Comparison::Greater,
            ">=" => Comparison::GreaterOrEqual,
            "==" => Comparison::Equal,
            "!=" => Comparison::Unequal,
            "+" => return self.arithmetic(at, operator, (Arithmetic::Add, left, right)),
            "-" => return self.arithmetic(at, operator, (Arithmetic::Subtract, left, right)),
            "*" => return self.arithmetic(at, operator, (Arithmetic::Multiply, left, right)),
            "/" => return self.arithmetic(at, operator, (Arithmetic::Divide, left, right)),
            _ => return self.arithmetic(at, operator, (Arithmetic::Remainder, left, right)),
        };
        Ok(Typed::Truth(match self.both(at, operator, left, right)? {
            Both::Ints(left, right) => Truth::Ints(comparison, Box::new((left, right))),
            Both::Doubles(left, right) => Truth::Doubles(comparison, Box::new((left, right))),
            Both::Texts(left, right) => Truth::Texts(comparison, Box::new((left, right))),
            Both::Truths(left, right) => Truth::Truths(comparison, Box::new((left, right))),
        }))
    }

    fn arithmetic(
        &self,
        at: usize,
        operator: &'static str,
        (operation, left, right): (Arithmetic, &Syntax, &Syntax),
    ) -> Checked<V::Field> {
        match self.both(at, operator, left, right)? {
            // CEL has no `%` of doubles.
            Both::Doubles(..) if operation == Arithmetic::Remainder => {
                Err(self.operands(at, operator, "double".to_owned(), "two ints"))
            }
            Both::Ints(left, right) => {
                Ok(Typed::Int(Int::Arithmetic(operation, Box::new((left, right)))))
            }
            Both::Doubles(left, right) => {
                Ok(Typed::Double(Double::Arithmetic(operation, Box::new((left, right)))))
            }
            both => Err(self.operands(at, operator, both.kind().to_string(), "two numbers")),
        }
    }

    fn choose(&self, at: usize, [condition, yes, no]: &[Syntax; 3]) -> Checked<V::Field> {
        let condition = self.truth("? :", condition)?;
        Ok(match self.both(at, "? :", yes, no)? {
            Both::Ints(yes, no) => Typed::Int(Int::Choose(Box::new((condition, yes, no)))),
            Both::Doubles(yes, no) => Typed::Double(Double::Choose(Box::new((condition, yes, no)))),
            Both::Texts(yes, no) => Typed::Text(Text::Choose(Box::new((condition, yes, no)))),
            Both::Truths(yes, no) => Typed::Truth(Truth::Choose(Box::new((condition, yes, no)))),
        })
    }

    fn among(&self, at: usize, value: &Syntax, list: &Syntax) -> Checked<V::Field> {
        let Part::List(items) = &list.part else {
            return Err(self.error(list.at, Problem::List));
        };
        let misfit = |item: &Syntax| self.error(item.at, Problem::List);
        let ints = || items.iter().map(|item| literal_int(item).ok_or_else(|| misfit(item)));
        let doubles = || items.iter().map(|item| literal_double(item).ok_or_else(|| misfit(item)));
        let texts = || items.iter().map(|item| literal_text(item).ok_or_else(|| misfit(item)));
        Ok(Typed::Truth(match self.check(value)? {
            Typed::Int(int) if items.iter().all(|item| literal_int(item).is_some()) => {
                Truth::AmongInts(Box::new(int), ints().collect::<Result<_, _>>()?)
            }
            Typed::Int(int) => {
                let double = Double::FromInt(Box::new(int));
                Truth::AmongDoubles(Box::new(double), doubles().collect::<Result<_, _>>()?)
            }
            Typed::Double(double) => {
                Truth::AmongDoubles(Box::new(double), doubles().collect::<Result<_, _>>()?)
            }
            Typed::Text(text) => {
                Truth::AmongTexts(Box::new(text), texts().collect::<Result<_, _>>()?)
            }
            Typed::Truth(_) => {
                return Err(self.operands(at, "in", "bool".to_owned(), "a number or a string"));
            }
        }))
    }

    fn function(&self, at: usize, name: &str, arguments: &[Syntax]) -> Checked<V::Field> {
        match (name, arguments) {
            ("min", [left, right]) => self.arithmetic(at, "min", (Arithmetic::Least, left, right)),
            ("max", [left, right]) => {
                self.arithmetic(at, "max", (Arithmetic::Greatest, left, right))
            }
            ("int", [number]) => match self.check(number)? {
                Typed::Double(double) => Ok(Typed::Int(Int::FromDouble(Box::new(double)))),
                int @ Typed::Int(_) => Ok(int),
                _ => Err(self.arguments(at, name, "one number")),
            },
            ("double", [number]) => match self.check(number)? {
                Typed::Int(int) => Ok(Typed::Double(Double::FromInt(Box::new(int)))),
                double @ Typed::Double(_) => Ok(double),
                _ => Err(self.arguments(at, name, "one number")),
            },
            ("has", [Syntax { at, part: Part::Path(path) }]) => match self.field(*at, path)? {
                (field, Type::String) => Ok(Typed::Truth(Truth::Has(field))),
                _ => Ok(Typed::Truth(Truth::Literal(true))),
            },
            ("min" | "max", _) => Err(self.arguments(at, name, "two numbers")),
            ("int" | "double", _) => Err(self.arguments(at, name, "one number")),
            ("has", _) => Err(self.arguments(at, name, "one field")),
            _ => Err(self.error(at, Problem::UnknownFunction { name: name.to_owned() })),
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
                return Ok(Typed::Int(Int::Size(text)));
            }
            "contains" => TextTest::Contains,
            "startsWith" => TextTest::StartsWith,
            "endsWith" => TextTest::EndsWith,
            _ => return Err(self.error(at, Problem::UnknownFunction { name: name.to_owned() })),
        };
        let takes = "a string before the dot and one in the parentheses";
        let [text, part] = arguments else { return Err(self.arguments(at, name, takes)) };
        match (self.check(text)?, self.check(part)?) {
            (Typed::Text(text), Typed::Text(part)) => {
                Ok(Typed::Truth(Truth::TextTest(test, Box::new((text, part)))))
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
            self.error(at, Problem::UnknownField { path, suggestion })
        })
    }

    fn truth(&self, operator: &'static str, syntax: &Syntax) -> Result<Truth<V::Field>, CelError> {
        match self.check(syntax)? {
            Typed::Truth(truth) => Ok(truth),
            other => Err(self.operands(syntax.at, operator, other.kind().to_string(), "a bool")),
        }
    }

    fn both(
        &self,
        at: usize,
        operator: &'static str,
        left: &Syntax,
        right: &Syntax,
    ) -> Result<Both<V::Field>, CelError> {
        self.check(left)?.with(self.check(right)?).map_err(|(left, right)| {
            self.operands(at, operator, format!("{left} and {right}"), "operands of one type")
        })
    }

    fn operands(
        &self,
        at: usize,
        operator: &'static str,
        operands: String,
        takes: &'static str,
    ) -> CelError {
        self.error(at, Problem::Operands { operator, operands, takes })
    }

    fn arguments(&self, at: usize, name: &str, takes: &'static str) -> CelError {
        self.error(at, Problem::Arguments { name: name.to_owned(), takes })
    }

    fn error(&self, at: usize, problem: Problem) -> CelError {
        error(self.text, at, problem)
    }
}

fn literal_int(syntax: &Syntax) -> Option<i64> {
    if let Part::Int(value) = syntax.part { Some(value) } else { None }
}

fn literal_double(syntax: &Syntax) -> Option<f64> {
    match syntax.part {
        Part::Int(value) => Some(value as f64),
        Part::Double(value) => Some(value),
        _ => None,
    }
}

fn literal_text(syntax: &Syntax) -> Option<Box<str>> {
    if let Part::Text(text) = &syntax.part { Some(text.as_str().into()) } else { None }
}
