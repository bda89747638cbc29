//! error: none
//! The same access with a handle from assembly compiles, so the other files fail for their own
//! reason.
use wornpath_routing::{Assembly, Decision, Preparing, Reads, Tokens, Writes};

pub fn ask(assembly: &mut Assembly<'_>) -> (Reads<Tokens>, Writes<Tokens>) {
    (assembly.reads(), assembly.writes())
}

pub fn write(preparing: &mut Preparing<'_>, tokens: &Writes<Tokens>) {
    preparing.write(tokens).0.push(1);
}

pub fn read<'a>(decision: &Decision<'a>, tokens: &Reads<Tokens>) -> Option<&'a Tokens> {
    decision.read(tokens)
}
