//! `terrace-agent`.

fn main() {
    eprintln!("terrace-agent: not yet");
    std::process::exit(1);
}
