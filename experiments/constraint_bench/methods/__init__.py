"""The methods, one file for each library; each has settings by name, "recommended" first."""
