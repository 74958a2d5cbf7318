"""Who may do what: roles, tokens, browser sessions, a proxy's word."""
