//! error: none
//! The same as the others, with the handle that assembly gave: without this they would prove nothing.
use wornpath_routing::{Assembly, Decision, Preparing, Reads, Tokens, Writes};

pub fn ask(assembly: &mut Assembly<'_>) -> (Reads<Tokens>, Writes<Tokens>) {
    (assembly.reads(), assembly.writes())
}

pub fn write(scene: &mut Preparing<'_>, tokens: &Writes<Tokens>) {
    scene.write(tokens).0.push(1);
}

pub fn read<'a>(scene: &Decision<'a>, tokens: &Reads<Tokens>) -> Option<&'a Tokens> {
    scene.read(tokens)
}
