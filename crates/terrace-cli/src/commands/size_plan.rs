//! `terrace plan --dry-run`: the sizes that balancing would order now.

use anyhow::Result;
use terrace_api::client::Client;
use terrace_api::provision::SizePlan;

use super::print_json;
use crate::{output, render};

pub async fn run(client: &Client, json: bool) -> Result<()> {
    let plan: SizePlan = client.get("/v1/plan").await?;
    if json {
        return print_json(&plan);
    }
    output::print(text(&plan))?;
    Ok(())
}

fn text(plan: &SizePlan) -> String {
    if plan.changes.is_empty() && plan.unchanged.is_empty() {
        return "no VM has memory that can be resized\n".into();
    }
    let mut out = match plan.changes.len() {
        0 => "no VM would change size now\n".to_owned(),
        1 => "1 VM would change size now. Nothing was ordered.\n".to_owned(),
        n => format!("{n} VMs would change size now. Nothing was ordered.\n"),
    };
    let rows = plan.changes.iter().map(|planned| {
        let change = &planned.change;
        vec![
            planned.vm.clone(),
            render::bytes(change.from_bytes),
            render::bytes(change.to_bytes),
            change.why.clone(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    if !rows.is_empty() {
        let table = render::table(&["VM", "NOW", "THEN", "WHY"], &[1, 2], &rows);
        out += &format!("\n{table}");
    }
    if !plan.unchanged.is_empty() {
        out += "\nthese keep what they have:\n";
    }
    for unchanged in &plan.unchanged {
        let why = unchanged.left_alone.as_deref();
        let why = why.unwrap_or("it has what it is to have");
        out += &format!("  {}: {why}\n", unchanged.vm);
    }
    out
}

#[cfg(test)]
mod tests {
    use terrace_api::provision::{PlannedSize, SizeChange, Unchanged};

    use super::*;

    #[test]
    fn a_plan_names_who_changes_and_why_others_do_not() {
        let plan = SizePlan {
            changes: vec![PlannedSize {
                vm: "web1".into(),
                change: SizeChange {
                    from_bytes: 4 << 30,
                    to_bytes: 3 << 30,
                    why: "its guest calls 2 GiB free; batch1 has use for more".into(),
                    ..SizeChange::default()
                },
            }],
            unchanged: vec![
                Unchanged {
                    vm: "batch1".into(),
                    left_alone: None,
                },
                Unchanged {
                    vm: "db1".into(),
                    left_alone: Some("it has no memory_floor".into()),
                },
            ],
        };
        let text = text(&plan);
        for part in [
            "1 VM would change size now. Nothing was ordered.",
            "web1  4 GiB  3 GiB  its guest calls 2 GiB free",
            "  batch1: it has what it is to have",
            "  db1: it has no memory_floor",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(super::text(&SizePlan::default()).contains("no VM has memory"));
    }
}
