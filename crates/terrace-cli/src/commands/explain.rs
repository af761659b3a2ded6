//! `terrace explain VM [--page GPA]`.

use anyhow::Result;
use terrace_api::client::{Client, segment};
use terrace_api::types::{PageExplanation, VmDetail};

use super::print_json;

pub async fn run(client: &Client, name: &str, page: Option<u64>, json: bool) -> Result<()> {
    match page {
        Some(gpa) => explain_page(client, name, gpa, json).await,
        None => explain_vm(client, name, json).await,
    }
}

async fn explain_page(client: &Client, name: &str, gpa: u64, json: bool) -> Result<()> {
    let path = format!("/v1/vms/{}/pages/{gpa:#x}", segment(name));
    let page: PageExplanation = client.get(&path).await?;
    if json {
        return print_json(&page);
    }
    println!(
        "{name}, page at {:#x} (guest page {:#x}): in {}",
        page.gpa,
        page.gfn,
        page.tier.as_deref().unwrap_or("no tier"),
    );
    if page.known {
        println!(
            "  accessed in {} and written in {} of {} windows: degree {} (hot from {}), level {}",
            page.reads + page.writes,
            page.writes,
            page.windows,
            page.degree,
            page.threshold_degree,
            page.level,
        );
    }
    for sentence in &page.because {
        println!("  {sentence}");
    }
    Ok(())
}

async fn explain_vm(client: &Client, name: &str, json: bool) -> Result<()> {
    let detail: VmDetail = client.get(&format!("/v1/vms/{}", segment(name))).await?;
    if json {
        return print_json(&detail.reasons);
    }
    println!("{name}: {}, {}", detail.vm.mode, detail.vm.reason);
    if let Some(share) = &detail.vm.share {
        println!("  {}", share.why);
    }
    for reason in &detail.reasons {
        println!("  {:>8.1} s  {}", reason.at_s, reason.text);
    }
    Ok(())
}
