//! The libFuzzer entry of the target; its body is in the library.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| wornpath_fuzz::exchange_update(bytes));

#[cfg(not(fuzzing))]
fn main() {}
