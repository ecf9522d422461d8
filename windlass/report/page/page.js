// The page of a report: its data are in it.

report.data = JSON.parse(document.getElementById('data').textContent);
showPlans();
