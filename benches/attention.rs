//! `cargo bench --features cli --bench attention -- [ARGUMENTS]`: the program's `bench`. All arguments are the program's (`--help`
//! lists them).

mod program;

fn main() -> std::process::ExitCode {
    program::bench(&[])
}
