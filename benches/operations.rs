//! `cargo bench --features cli --bench operations -- [ARGUMENTS]`: the program's `bench --preset operations`, softmax and sampling.

mod program;

fn main() -> std::process::ExitCode {
    program::bench(&["--preset", "operations"])
}
