//! DAMON's own tiering: hot pages of one node to another, cold pages the other way.
//!
//! One kernel thread for each scheme watches a node's physical memory; before a page moves, its accessed bit is asked
//! once more (the `young` filter).

const KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds";

/// Pages of one node that go to another.
#[derive(Clone, Copy, Debug)]
pub struct Scheme {
    pub action: &'static str,
    pub from: u32,
    pub to: u32,
    /// Least and most accesses of a region in an aggregation of 100 ms, by samples of 5 ms.
    pub accesses: (u32, u32),
    /// Least aggregations for which a region has been like that.
    pub age: u32,
    /// Whether pages stay that were accessed since the bit was looked at last, instead of those that were not.
    pub young_stay: bool,
}

/// Accessed pages go to the fast node.
pub const HOT: Scheme = Scheme {
    action: "migrate_hot",
    from: 1,
    to: 0,
    accesses: (1, u32::MAX),
    age: 0,
    young_stay: false,
};

/// Not accessed for 50 aggregations: to the slow node.
pub const COLD: Scheme = Scheme {
    action: "migrate_cold",
    from: 0,
    to: 1,
    accesses: (0, 0),
    age: 50,
    young_stay: true,
};

/// Commands that make a thread ready to start for each scheme.
pub fn prepare(schemes: &[Scheme]) -> String {
    let each = schemes.iter().zip(0..);
    let threads: String = each.map(|(scheme, index)| kdamond(index, scheme)).collect();
    format!(
        "set -e
        cd {KDAMONDS}
        echo {} >nr_kdamonds
        range() {{ # of a node's memory, as DAMON takes it: in bytes
            awk -v wanted=\"$1,\" '/^Node/ {{ node = $2 }}
                node == wanted && $1 == \"present\" {{ present = $2 }}
                node == wanted && $1 == \"spanned\" {{ spanned = $2 }}
                node == wanted && $1 == \"start_pfn:\" && present > 0 {{
                    if (first == \"\") first = $2
                    end = $2 + spanned
                    present = 0
                }}
                END {{ printf \"%.0f %.0f\", first * 4096, end * 4096 }}' /proc/zoneinfo
        }}
        {threads}",
        schemes.len()
    )
}

/// A command that starts or ends the thread of a scheme (`on`, `off`), or has it take new settings (`commit`).
pub fn state(index: u32, state: &str) -> String {
    format!("echo {state} >{KDAMONDS}/{index}/state")
}

/// A command that sets a scheme's parameter, by its file.
pub fn set(index: u32, file: &str, value: u64) -> String {
    format!("echo {value} >{KDAMONDS}/{index}/contexts/0/schemes/0/{file}")
}

/// A command that prints a scheme's file.
pub fn get(index: u32, file: &str) -> String {
    format!("cat {KDAMONDS}/{index}/contexts/0/schemes/0/{file}")
}

/// Commands for one thread that watches a node and moves pages.
fn kdamond(index: u32, scheme: &Scheme) -> String {
    let Scheme {
        action,
        from,
        to,
        accesses: (least, most),
        age,
        young_stay,
    } = scheme;
    let filtered_out_if_young = if *young_stay { "Y" } else { "N" };
    format!(
        "cd {KDAMONDS}/{index}
        echo 1 >contexts/nr_contexts
        cd contexts/0
        echo paddr >operations
        echo 10000 >monitoring_attrs/nr_regions/max
        echo 100 >monitoring_attrs/nr_regions/min
        echo 1 >targets/nr_targets
        echo 1 >targets/0/regions/nr_regions
        set -- $(range {from})
        echo $1 >targets/0/regions/0/start
        echo $2 >targets/0/regions/0/end
        echo 1 >schemes/nr_schemes
        cd schemes/0
        echo {action} >action
        echo {to} >target_nid
        echo {least} >access_pattern/nr_accesses/min
        echo {most} >access_pattern/nr_accesses/max
        echo {age} >access_pattern/age/min
        echo {max} >access_pattern/age/max
        echo 18446744073709551615 >access_pattern/sz/max
        echo 1 >filters/nr_filters
        echo young >filters/0/type
        echo {filtered_out_if_young} >filters/0/matching\n",
        max = u32::MAX
    )
}
