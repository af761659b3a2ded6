use terrace_core::*;
use terrace_proto::*;
use terrace_sim::{run::*, scenario::*, workload::Workload};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let policy = a[1].as_str();
    let scale: u64 = a[2].parse().unwrap();
    let secs: u64 = a[3].parse().unwrap();
    let gib = |x: f64| (x * (1u64 << 30) as f64) as u64;
    let (size, fast, slow) = (
        gib(a[4].parse().unwrap()),
        gib(a[5].parse().unwrap()),
        gib(a[6].parse().unwrap()),
    );
    let hot: f64 = a[7].parse().unwrap();
    let write: f64 = a[8].parse().unwrap();
    let tier = |name: &str, kind, bytes, r, w, rb, wb, line| Tier {
        name: name.into(),
        kind,
        bytes,
        read_ns: r,
        write_ns: w,
        read_gb_s: rb,
        write_gb_s: wb,
        line,
    };
    let p = match policy {
        "first-touch" => HostPolicy::FirstTouch,
        "all-fast" => HostPolicy::AllFast,
        "all-slow" => HostPolicy::AllSlow,
        "oracle" => HostPolicy::Oracle,
        "interleave" => HostPolicy::Interleave,
        s => HostPolicy::Engine(
            s.into(),
            serde_json::from_str(&if s.starts_with('{') {
                s.to_string()
            } else {
                format!("\"{s}\"")
            })
            .unwrap(),
        ),
    };
    let s = Scenario {
        name: "t".into(),
        folder: ".".into(),
        seed: 1,
        machine: Machine {
            tiers: vec![
                tier("dram", TierKind::Dram, fast, 81.0, 82.0, 120.0, 82.0, 64),
                tier("pmem", TierKind::Pmem, slow, 310.0, 94.0, 37.0, 13.0, 256),
            ],
            scale,
            management_cpus: 4,
        },
        vms: vec![Vm {
            name: "vm1".into(),
            sizes: vec![fast, slow],
            guest_page: PageSize::Base,
            host_page: PageSize::Base,
            policy: p,
            guest_policy: None,
            weight: 1000,
            floor: None,
            ceiling: None,
            max_slowdown: None,
            start: Start::FirstTouch,
            vcpus: 8,
            workload: Workload::Gups {
                bytes: size,
                hot,
                hot_access: 0.9,
                write,
            },
            stop: Stop::Duration(secs * 1_000_000_000),
            swap: 0,
            balloon: vec![],
        }],
        host: Host {
            share: Share::Island,
            reserve: 0.05,
        },
    };
    let t = std::time::Instant::now();
    let mut sim = Simulation::new(&s, Options::default()).unwrap();
    eprintln!("setup {:.2} s", t.elapsed().as_secs_f64());
    let t = std::time::Instant::now();
    sim.advance(u64::MAX);
    let w = t.elapsed().as_secs_f64();
    let r = sim.result();
    println!("{}", serde_json::to_string_pretty(&r).unwrap());
    for r in sim.engine().vm_reasons(VmId(1), 0) {
        eprintln!("{r:?}");
    }
    if let Some(l) = sim.engine().last_round(VmId(1)) {
        eprintln!("{l:?}");
    }
    println!(
        "wall {w:.2} s, {:.2} M/s; util {:.2} {:.2}",
        r.accesses as f64 / w / 1e6,
        sim.utilization(TierId(0)),
        sim.utilization(TierId(1))
    );
}
