"""WHAT DOES `sample` ASK FOR? Arguments of users, as rules of sampling."""
