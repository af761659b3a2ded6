use terrace_sim::{Options, Scenario, Simulation};
fn main() {
    let file = std::env::args().nth(1).unwrap();
    let s = Scenario::load(std::path::Path::new(&file)).unwrap();
    let mut sim = Simulation::new(&s, Options::default()).unwrap();
    let mut at = 0;
    let mut last = (0u64, 0u64);
    loop {
        at += 10_000_000_000;
        let on = sim.advance(at);
        let now = (
            sim.accesses(terrace_proto::VmId(1)),
            sim.memory_accesses(terrace_proto::VmId(1)).1,
        );
        let r = sim.result();
        let v = &r.vms[0];
        eprintln!(
            "{} s: {} acc/10s, up {} down {} rounds {}",
            at / 1_000_000_000,
            now.0 - last.0,
            v.promoted_pages,
            v.demoted_pages,
            v.rounds
        );
        last = now;
        if !on {
            break;
        }
    }
    let r = sim.result();
    let v = &r.vms[0];
    println!(
        "{} ops {} up {:.1} down {:.1} track {:.3}% classify {:.3}% migrate {:.3}% state {:.2}",
        file,
        v.ops_per_s,
        v.promoted_pages as f64 / 256.,
        v.demoted_pages as f64 / 256.,
        100. * v.overhead_s.track / v.runtime_s,
        100. * v.overhead_s.classify / v.runtime_s,
        100. * v.overhead_s.migrate / v.runtime_s,
        r.state_bytes_per_page
    );
}
