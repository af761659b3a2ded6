//! DAMON's own tiering: hot pages of the slow node to the fast one, cold pages the other way.
//!
//! One kernel thread for each node watches the node's physical memory; before a page moves, its
//! accessed bit is asked once more (the `young` filter).

/// Commands that make DAMON ready to start.
pub fn prepare() -> String {
    let hot = kdamond(
        0,
        1,
        "migrate_hot",
        0,
        ("1 4294967295", "0 4294967295"),
        "N",
    );
    // Not accessed for 50 aggregations of 100 ms.
    let cold = kdamond(1, 0, "migrate_cold", 1, ("0 0", "50 4294967295"), "Y");
    format!(
        "set -e
        cd /sys/kernel/mm/damon/admin/kdamonds
        echo 2 >nr_kdamonds
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
        {hot}
        {cold}"
    )
}

/// Commands that start both threads.
pub const BEGIN: &str = "set -e
    cd /sys/kernel/mm/damon/admin/kdamonds
    for i in 0 1; do echo on >$i/state; done";

/// Commands for one thread that watches node `from` and moves pages to node `to`.
fn kdamond(
    index: u32,
    from: u32,
    action: &str,
    to: u32,
    (accesses, age): (&str, &str),
    filtered_out_if_young: &str,
) -> String {
    format!(
        "cd /sys/kernel/mm/damon/admin/kdamonds/{index}
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
        set -- {accesses}
        echo $1 >access_pattern/nr_accesses/min
        echo $2 >access_pattern/nr_accesses/max
        set -- {age}
        echo $1 >access_pattern/age/min
        echo $2 >access_pattern/age/max
        echo 18446744073709551615 >access_pattern/sz/max
        echo 1 >filters/nr_filters
        echo young >filters/0/type
        echo {filtered_out_if_young} >filters/0/matching"
    )
}
