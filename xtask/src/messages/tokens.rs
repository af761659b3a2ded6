//! The tokens of a source, as far as messages need them.

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A token. Comments are none; a doc comment is an attribute.
#[derive(Debug, PartialEq, Eq)]
pub enum Token {
    /// A name or a keyword.
    Word(String),
    /// One character of an operator.
    Mark(char),
    /// The value of a string literal: escapes and continued lines are resolved.
    Text(String),
    /// What stands in brackets, with the opening one.
    Group(char, Vec<Token>),
    /// Another literal.
    Other,
}

/// The tokens of a source.
///
/// # Errors
/// If it is not Rust.
pub fn tokens(source: &str) -> Result<Vec<Token>> {
    let stream: TokenStream = source.parse().map_err(|error| anyhow!("{error}"))?;
    Ok(of(stream))
}

fn of(stream: TokenStream) -> Vec<Token> {
    stream
        .into_iter()
        .map(|tree| match tree {
            TokenTree::Ident(ident) => Token::Word(ident.to_string()),
            TokenTree::Punct(punct) => Token::Mark(punct.as_char()),
            TokenTree::Literal(literal) => match syn::Lit::new(literal) {
                syn::Lit::Str(text) => Token::Text(text.value()),
                _ => Token::Other,
            },
            TokenTree::Group(group) => {
                let opening = match group.delimiter() {
                    Delimiter::Parenthesis => '(',
                    Delimiter::Brace => '{',
                    Delimiter::Bracket => '[',
                    Delimiter::None => ' ',
                };
                Token::Group(opening, of(group.stream()))
            }
        })
        .collect()
}
