//! A checked expression: a tree with one Rust type per type of value, so that evaluation has no case
//! that cannot happen.

/// What an evaluation can run into although the expression is well typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// `/` or `%` of ints by zero.
    #[error("an int was divided by zero")]
    DivisionByZero,
    /// A result that does not fit 64 bits.
    #[error("an int grew beyond 64 bits")]
    Overflow,
    /// Zero divided by zero, and what follows from it.
    #[error("the result is not a number")]
    NotANumber,
}

/// The values of the fields, for one candidate. A field is asked only for values of its own type;
/// for others any answer will do.
pub(crate) trait Values<F> {
    /// The value of an int.
    fn int(&self, field: F) -> i64;
    /// The value of a double.
    fn double(&self, field: F) -> f64;
    /// The value of a bool.
    fn truth(&self, field: F) -> bool;
    /// The value of a string; none if it is absent, which reads as the empty string.
    fn text(&self, field: F) -> Option<&str>;
}

/// A checked expression whose value is a number.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Program<F>(pub(super) Double<F>);

impl<F: Copy> Program<F> {
    /// The expression's value: never NaN.
    ///
    /// # Errors
    /// Says what arithmetic ran into.
    pub(crate) fn evaluate(&self, values: &impl Values<F>) -> Result<f64, Fault> {
        let value = self.0.value(values)?;
        if value.is_nan() { Err(Fault::NotANumber) } else { Ok(value) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Least,
    Greatest,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    Unequal,
}

impl Comparison {
    fn holds<T: PartialOrd + ?Sized>(self, left: &T, right: &T) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::Equal => left == right,
            Self::Unequal => left != right,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TextTest {
    Contains,
    StartsWith,
    EndsWith,
}

type Pair<T> = Box<(T, T)>;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Int<F> {
    Literal(i64),
    Field(F),
    Negate(Box<Int<F>>),
    Arithmetic(Arithmetic, Pair<Int<F>>),
    Choose(Box<(Truth<F>, Int<F>, Int<F>)>),
    /// Towards zero.
    FromDouble(Box<Double<F>>),
    /// Unicode characters.
    Size(Text<F>),
}

impl<F: Copy> Int<F> {
    fn value(&self, values: &impl Values<F>) -> Result<i64, Fault> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Field(field) => Ok(values.int(*field)),
            Self::Negate(operand) => operand.value(values)?.checked_neg().ok_or(Fault::Overflow),
            Self::Choose(parts) => {
                if parts.0.value(values)? { &parts.1 } else { &parts.2 }.value(values)
            }
            Self::FromDouble(double) => {
                let value = double.value(values)?;
                // The bounds are exact as doubles: -2^63 fits, 2^63 does not.
                let fits =
                    (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&value);
                if fits { Ok(value as i64) } else { Err(Fault::Overflow) }
            }
            Self::Size(text) => Ok(text.value(values)?.chars().count() as i64),
            Self::Arithmetic(operation, pair) => {
                let (left, right) = (pair.0.value(values)?, pair.1.value(values)?);
                let divides = matches!(operation, Arithmetic::Divide | Arithmetic::Remainder);
                if divides && right == 0 {
                    return Err(Fault::DivisionByZero);
                }
                let result = match operation {
                    Arithmetic::Add => left.checked_add(right),
                    Arithmetic::Subtract => left.checked_sub(right),
                    Arithmetic::Multiply => left.checked_mul(right),
                    Arithmetic::Divide => left.checked_div(right),
                    Arithmetic::Remainder => left.checked_rem(right),
                    Arithmetic::Least => Some(left.min(right)),
                    Arithmetic::Greatest => Some(left.max(right)),
                };
                result.ok_or(Fault::Overflow)
            }
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Double<F> {
    Literal(f64),
    Field(F),
    Negate(Box<Double<F>>),
    Arithmetic(Arithmetic, Pair<Double<F>>),
    Choose(Box<(Truth<F>, Double<F>, Double<F>)>),
    FromInt(Box<Int<F>>),
}

impl<F: Copy> Double<F> {
    fn value(&self, values: &impl Values<F>) -> Result<f64, Fault> {
        match self {
            Self::Literal(value) => Ok(*value),
            Self::Field(field) => Ok(values.double(*field)),
            Self::Negate(operand) => Ok(-operand.value(values)?),
            Self::Choose(parts) => {
                if parts.0.value(values)? { &parts.1 } else { &parts.2 }.value(values)
            }
            Self::FromInt(int) => Ok(int.value(values)? as f64),
            Self::Arithmetic(operation, pair) => {
                let (left, right) = (pair.0.value(values)?, pair.1.value(values)?);
                Ok(match operation {
                    Arithmetic::Add => left + right,
                    Arithmetic::Subtract => left - right,
                    Arithmetic::Multiply => left * right,
                    Arithmetic::Divide => left / right,
                    Arithmetic::Remainder => left % right,
                    Arithmetic::Least => left.min(right),
                    Arithmetic::Greatest => left.max(right),
                })
            }
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Truth<F> {
    Literal(bool),
    Field(F),
    Has(F),
    Not(Box<Truth<F>>),
    And(Pair<Truth<F>>),
    Or(Pair<Truth<F>>),
    Choose(Box<(Truth<F>, Truth<F>, Truth<F>)>),
    Ints(Comparison, Pair<Int<F>>),
    Doubles(Comparison, Pair<Double<F>>),
    Texts(Comparison, Pair<Text<F>>),
    Truths(Comparison, Pair<Truth<F>>),
    TextTest(TextTest, Pair<Text<F>>),
    /// An int among ints is compared as an int, exactly.
    AmongInts(Box<Int<F>>, Box<[i64]>),
    AmongDoubles(Box<Double<F>>, Box<[f64]>),
    AmongTexts(Box<Text<F>>, Box<[Box<str>]>),
}

impl<F: Copy> Truth<F> {
    fn value(&self, values: &impl Values<F>) -> Result<bool, Fault> {
        Ok(match self {
            Self::Literal(value) => *value,
            Self::Field(field) => values.truth(*field),
            Self::Has(field) => values.text(*field).is_some(),
            Self::Not(operand) => !operand.value(values)?,
            Self::And(pair) => return decided_by(false, pair, values),
            Self::Or(pair) => return decided_by(true, pair, values),
            Self::Choose(parts) => {
                return if parts.0.value(values)? { &parts.1 } else { &parts.2 }.value(values);
            }
            Self::Ints(comparison, pair) => {
                comparison.holds(&pair.0.value(values)?, &pair.1.value(values)?)
            }
            Self::Doubles(comparison, pair) => {
                comparison.holds(&pair.0.value(values)?, &pair.1.value(values)?)
            }
            Self::Texts(comparison, pair) => {
                comparison.holds(pair.0.value(values)?, pair.1.value(values)?)
            }
            Self::Truths(comparison, pair) => {
                comparison.holds(&pair.0.value(values)?, &pair.1.value(values)?)
            }
            Self::TextTest(test, pair) => {
                let (text, part) = (pair.0.value(values)?, pair.1.value(values)?);
                match test {
                    TextTest::Contains => text.contains(part),
                    TextTest::StartsWith => text.starts_with(part),
                    TextTest::EndsWith => text.ends_with(part),
                }
            }
            Self::AmongInts(int, list) => list.contains(&int.value(values)?),
            Self::AmongDoubles(double, list) => list.contains(&double.value(values)?),
            Self::AmongTexts(text, list) => {
                let text = text.value(values)?;
                list.iter().any(|item| **item == *text)
            }
        })
    }
}

/// `&&` is decided by `false` on either side and `||` by `true`, even if the other side has a fault:
/// so says CEL, and so the order of the operands does not matter.
fn decided_by<F: Copy>(
    decisive: bool,
    pair: &(Truth<F>, Truth<F>),
    values: &impl Values<F>,
) -> Result<bool, Fault> {
    let left = pair.0.value(values);
    if left == Ok(decisive) {
        return left;
    }
    let right = pair.1.value(values);
    if right == Ok(decisive) { right } else { left.and(right) }
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Text<F> {
    Literal(Box<str>),
    Field(F),
    Choose(Box<(Truth<F>, Text<F>, Text<F>)>),
}

impl<F: Copy> Text<F> {
    fn value<'a>(&'a self, values: &'a impl Values<F>) -> Result<&'a str, Fault> {
        match self {
            Self::Literal(text) => Ok(text),
            Self::Field(field) => Ok(values.text(*field).unwrap_or_default()),
            Self::Choose(parts) => {
                if parts.0.value(values)? { &parts.1 } else { &parts.2 }.value(values)
            }
        }
    }
}
