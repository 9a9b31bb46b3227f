"""Types that steps, web API and pages share."""
