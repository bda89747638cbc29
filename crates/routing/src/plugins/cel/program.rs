//! A checked expression, evaluated for all candidates at once.
//!
//! Each node of the tree yields one number for all candidates, or a column with one number per
//! candidate. What does not depend on the pod is computed once, and what does is a loop over a
//! column that the compiler can vectorise, instead of a walk through the tree per candidate.
//!
//! Numbers and bools are both `f64`: types were checked before, 1 is true and 0 is false. NaN is an
//! error value (an int divided by zero or beyond 53 bits, zero divided by zero). It propagates,
//! except where the other side of `&&` or `||` decides.

/// The values of fields for a list of candidates.
pub(crate) trait CelBatch<F> {
    /// How many candidates there are.
    fn len(&self) -> usize;
    /// Whether the field can differ between candidates.
    fn varies(&self, field: F) -> bool;
    /// Writes a number or bool per candidate; `column` has one element if the field does not vary.
    fn fill(&self, field: F, column: &mut [f64]);
    /// A candidate's string; an absent one counts as the empty string.
    fn text(&self, field: F, candidate: usize) -> Option<&str>;
}

/// A checked expression whose value is a number or a bool.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Program<F>(pub(super) CelNumber<F>);

impl<F: Copy> Program<F> {
    /// Writes the expression's value per candidate, NaN for an error. Allocates at most one column
    /// per level of the expression, and nothing per candidate.
    pub(crate) fn evaluate(&self, batch: &impl CelBatch<F>, values: &mut [f64]) {
        match self.0.value(batch, &mut Columns::default()) {
            CelValue::Same(value) => values.fill(value),
            CelValue::Each(column) => values.copy_from_slice(&column),
        }
    }

    /// Writes whether a bool expression is true per candidate, and false for an error. Allocates
    /// as [`Program::evaluate`] does.
    pub(crate) fn test(&self, batch: &impl CelBatch<F>, holds: &mut [bool]) {
        let is_true = |value: f64| value == 1.0;
        match self.0.value(batch, &mut Columns::default()) {
            CelValue::Same(value) => holds.fill(is_true(value)),
            CelValue::Each(column) => {
                for (holds, value) in holds.iter_mut().zip(column) {
                    *holds = is_true(value);
                }
            }
        }
    }
}

/// Ints are stored in `f64`, which is exact up to 53 bits.
pub(super) const LARGEST_INT: f64 = 9_007_199_254_740_991.0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    IntAdd,
    IntSubtract,
    IntMultiply,
    IntDivide,
    IntRemainder,
    Min,
    Max,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    Unequal,
    And,
    Or,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TextTest {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    Unequal,
    Contains,
    StartsWith,
    EndsWith,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum CelText<F> {
    Literal(Box<str>),
    Field(F),
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum CelNumber<F> {
    Literal(f64),
    Field(F),
    Negate(Box<CelNumber<F>>),
    Not(Box<CelNumber<F>>),
    /// To an int, rounded towards zero.
    Truncate(Box<CelNumber<F>>),
    Binary(Binary, Box<[CelNumber<F>; 2]>),
    Choose(Box<[CelNumber<F>; 3]>),
    In(Box<CelNumber<F>>, Box<[f64]>),
    Texts(TextTest, Box<[CelText<F>; 2]>),
    InTexts(CelText<F>, Box<[Box<str>]>),
    /// In Unicode characters.
    Size(CelText<F>),
    /// Whether a string field is present.
    Has(F),
}

/// The value of a node: one number for all candidates, or one per candidate.
enum CelValue {
    Same(f64),
    Each(Vec<f64>),
}

/// Whether a text can differ between candidates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spread {
    Same,
    Each,
}

/// A pool of columns to reuse.
#[derive(Default)]
struct Columns(Vec<Vec<f64>>);

impl Columns {
    fn column(&mut self, length: usize) -> Vec<f64> {
        let mut column = self.0.pop().unwrap_or_default();
        column.resize(length, 0.0);
        column
    }

    fn map(value: CelValue, change: impl Fn(f64) -> f64) -> CelValue {
        match value {
            CelValue::Same(number) => CelValue::Same(change(number)),
            CelValue::Each(mut column) => {
                for number in &mut column {
                    *number = change(*number);
                }
                CelValue::Each(column)
            }
        }
    }

    fn zip(&mut self, left: CelValue, right: CelValue, join: impl Fn(f64, f64) -> f64) -> CelValue {
        match (left, right) {
            (left, CelValue::Same(right)) => Self::map(left, |left| join(left, right)),
            (CelValue::Same(left), right) => Self::map(right, |right| join(left, right)),
            (CelValue::Each(mut left), CelValue::Each(right)) => {
                for (left, right) in left.iter_mut().zip(&right) {
                    *left = join(*left, *right);
                }
                self.0.push(right);
                CelValue::Each(left)
            }
        }
    }
}

impl<F: Copy> CelNumber<F> {
    fn value(&self, batch: &impl CelBatch<F>, columns: &mut Columns) -> CelValue {
        match self {
            Self::Literal(number) => CelValue::Same(*number),
            Self::Field(field) if batch.varies(*field) => {
                let mut column = columns.column(batch.len());
                batch.fill(*field, &mut column);
                CelValue::Each(column)
            }
            Self::Field(field) => {
                let mut number = [0.0];
                batch.fill(*field, &mut number);
                CelValue::Same(number[0])
            }
            Self::Negate(operand) => Columns::map(operand.value(batch, columns), |x| -x),
            Self::Not(operand) => Columns::map(operand.value(batch, columns), |x| 1.0 - x),
            Self::Truncate(operand) => {
                Columns::map(operand.value(batch, columns), |x| exact(x.trunc()))
            }
            Self::In(operand, list) => {
                let is_in = |x: f64| related(x, x, |x, _| list.contains(x));
                Columns::map(operand.value(batch, columns), is_in)
            }
            Self::Binary(operation, pair) => {
                let left = pair[0].value(batch, columns);
                let right = pair[1].value(batch, columns);
                operation.apply(left, right, columns)
            }
            Self::Choose(parts) => {
                let [condition, yes, no] = &**parts;
                let condition = condition.value(batch, columns);
                let yes = yes.value(batch, columns);
                let no = no.value(batch, columns);
                choose(condition, yes, no, columns)
            }
            Self::Texts(test, pair) => {
                let [left, right] = &**pair;
                let spread = left.spread(batch).wider(right.spread(batch));
                each(spread, batch, columns, |at| {
                    f64::from(test.holds(left.at(batch, at), right.at(batch, at)))
                })
            }
            Self::InTexts(text, list) => each(text.spread(batch), batch, columns, |at| {
                let text = text.at(batch, at);
                f64::from(list.iter().any(|item| **item == *text))
            }),
            Self::Size(text) => each(text.spread(batch), batch, columns, |at| {
                text.at(batch, at).chars().count() as f64
            }),
            Self::Has(field) => each(Spread::of(*field, batch), batch, columns, |at| {
                f64::from(batch.text(*field, at).is_some())
            }),
        }
    }
}

impl<F: Copy> CelText<F> {
    fn spread(&self, batch: &impl CelBatch<F>) -> Spread {
        match self {
            Self::Literal(_) => Spread::Same,
            Self::Field(field) => Spread::of(*field, batch),
        }
    }

    fn at<'a>(&'a self, batch: &'a impl CelBatch<F>, candidate: usize) -> &'a str {
        match self {
            Self::Literal(text) => text,
            Self::Field(field) => batch.text(*field, candidate).unwrap_or_default(),
        }
    }
}

impl Spread {
    fn of<F>(field: F, batch: &impl CelBatch<F>) -> Self {
        if batch.varies(field) { Self::Each } else { Self::Same }
    }

    fn wider(self, other: Self) -> Self {
        if self == Self::Each { self } else { other }
    }
}

fn each<F>(
    spread: Spread,
    batch: &impl CelBatch<F>,
    columns: &mut Columns,
    number: impl Fn(usize) -> f64,
) -> CelValue {
    if spread == Spread::Same {
        return CelValue::Same(number(0));
    }
    let mut column = columns.column(batch.len());
    for (at, value) in column.iter_mut().enumerate() {
        *value = number(at);
    }
    CelValue::Each(column)
}

fn choose(condition: CelValue, yes: CelValue, no: CelValue, columns: &mut Columns) -> CelValue {
    let CelValue::Each(mut chosen) = condition else {
        let CelValue::Same(condition) = condition else { return condition };
        return match condition {
            1.0 => yes,
            0.0 => no,
            _ => CelValue::Same(f64::NAN),
        };
    };
    let side = |side: &CelValue, at: usize| match side {
        CelValue::Same(number) => *number,
        CelValue::Each(column) => column[at],
    };
    for (at, value) in chosen.iter_mut().enumerate() {
        *value = match *value {
            1.0 => side(&yes, at),
            0.0 => side(&no, at),
            error => error,
        };
    }
    for side in [yes, no] {
        if let CelValue::Each(column) = side {
            columns.0.push(column);
        }
    }
    CelValue::Each(chosen)
}

/// Whether a relation holds; an error if either side is one.
fn related(left: f64, right: f64, holds: impl Fn(&f64, &f64) -> bool) -> f64 {
    if left.is_nan() || right.is_nan() { f64::NAN } else { f64::from(holds(&left, &right)) }
}

/// An int, or an error beyond 53 bits. Adding zero turns -0 into 0: ints have no negative zero.
fn exact(int: f64) -> f64 {
    if int.abs() <= LARGEST_INT { int + 0.0 } else { f64::NAN }
}

impl Binary {
    fn apply(self, left: CelValue, right: CelValue, columns: &mut Columns) -> CelValue {
        match self {
            Self::Add => columns.zip(left, right, |a, b| a + b),
            Self::Subtract => columns.zip(left, right, |a, b| a - b),
            Self::Multiply => columns.zip(left, right, |a, b| a * b),
            Self::Divide => columns.zip(left, right, |a, b| a / b),
            Self::IntAdd => columns.zip(left, right, |a, b| exact(a + b)),
            Self::IntSubtract => columns.zip(left, right, |a, b| exact(a - b)),
            Self::IntMultiply => columns.zip(left, right, |a, b| exact(a * b)),
            // A quotient by zero is infinite or NaN, so it is an error; one of exact ints truncates
            // to the right int.
            Self::IntDivide => columns.zip(left, right, |a, b| exact((a / b).trunc())),
            Self::IntRemainder => columns.zip(left, right, |a, b| exact(a % b)),
            Self::Min => columns.zip(left, right, |a, b| if a < b || a.is_nan() { a } else { b }),
            Self::Max => columns.zip(left, right, |a, b| if a > b || a.is_nan() { a } else { b }),
            Self::Less => columns.zip(left, right, |a, b| related(a, b, f64::lt)),
            Self::LessOrEqual => columns.zip(left, right, |a, b| related(a, b, f64::le)),
            Self::Greater => columns.zip(left, right, |a, b| related(a, b, f64::gt)),
            Self::GreaterOrEqual => columns.zip(left, right, |a, b| related(a, b, f64::ge)),
            Self::Equal => columns.zip(left, right, |a, b| related(a, b, f64::eq)),
            Self::Unequal => columns.zip(left, right, |a, b| related(a, b, f64::ne)),
            // CEL: `false` on either side decides `&&`, and `true` decides `||`, even beside an
            // error.
            Self::And => {
                columns.zip(left, right, |a, b| if a == 0.0 || b == 0.0 { 0.0 } else { a * b })
            }
            Self::Or => {
                columns.zip(left, right, |a, b| if a == 1.0 || b == 1.0 { 1.0 } else { a + b })
            }
        }
    }
}

impl TextTest {
    fn holds(self, left: &str, right: &str) -> bool {
        match self {
            Self::Less => left < right,
            Self::LessOrEqual => left <= right,
            Self::Greater => left > right,
            Self::GreaterOrEqual => left >= right,
            Self::Equal => left == right,
            Self::Unequal => left != right,
            Self::Contains => left.contains(right),
            Self::StartsWith => left.starts_with(right),
            Self::EndsWith => left.ends_with(right),
        }
    }
}
